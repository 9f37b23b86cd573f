/* Engines: open, state, info, plans, shutdown, freeing order, callbacks. */
#define NEEDS_MODEL
#include "check.h"

static const char *model;

typedef struct seen {
  int calls, abort_after;
  float last;
  fathom_engine *other;
  fathom_status inside;
} seen;

static int32_t progress(void *user_data, float fraction, const char *phase, size_t phase_len) {
  seen *s = user_data;
  CHECK(phase != NULL && phase_len > 0);
  CHECK(fraction >= 0.0f && fraction <= 1.0f);
  s->last = fraction;
  s->calls++;
  if (s->other != NULL) s->inside = fathom_engine_shutdown(s->other, 0, NULL);
  return s->abort_after != 0 && s->calls >= s->abort_after;
}

static fathom_engine_options options(void) {
  fathom_engine_options o;
  fathom_engine_options_init(&o, sizeof o);
  o.model_path = str(model);
  o.device = str("cpu");
  return o;
}

static void opening_fails(void) {
  fathom_engine_options o = options();
  fathom_engine *e = NULL;
  fathom_error *err = NULL;
  o.model_path = str("/nonexistent/model");
  CHECK_STATUS(fathom_engine_open(&o, &e, &err), FATHOM_ERR_NOT_FOUND);
  CHECK(e == NULL && err != NULL);
  fathom_error_free(err);
  o = options();
  o.device = str("abacus");
  CHECK(fathom_engine_open(&o, &e, NULL) != FATHOM_OK && e == NULL);
  o = options();
  o.tuning_json = str("{\"no_such_key\":1}");
  CHECK_PARAM(fathom_engine_open(&o, &e, &err), FATHOM_ERR_INVALID_ARGUMENT, "no_such_key");
  o.tuning_json = str("[");
  CHECK_STATUS(fathom_engine_open(&o, &e, NULL), FATHOM_ERR_INVALID_ARGUMENT);
  seen s = {.abort_after = 1};
  o = options();
  o.progress = progress;
  o.progress_data = &s;
  CHECK_STATUS(fathom_engine_open(&o, &e, NULL), FATHOM_ERR_CANCELLED);
  CHECK(e == NULL && s.calls == 1);
}

static void life(void) {
  fathom_engine_options o = options();
  fathom_error *err = NULL;
  fathom_engine *e = NULL, *second = NULL;
  seen s = {0};
  o.progress = progress;
  o.progress_data = &s;
  CHECK_OK(fathom_engine_open(&o, &e, &err), err);
  CHECK(s.calls > 0);
  CHECK(fathom_engine_state(e) == FATHOM_ENGINE_READY);

  struct { fathom_engine_info known; uint64_t tail[2]; } info;
  memset(&info, 0xAB, sizeof info);
  info.known.struct_size = sizeof info;
  CHECK_STATUS(fathom_engine_info_get(e, &info.known), FATHOM_OK);
  CHECK(info.known.vocab_size == 4096 && info.known.max_context > 0 && info.known.device_count >= 1);
  CHECK(info.known.weight_bytes > 1000000 && info.known.kv_blocks > 0);
  CHECK(info.known.model_name != NULL && strlen(info.known.model_name) > 0);
  CHECK(info.known.struct_size == sizeof info && info.tail[0] == 0xABABABABABABABABu);
  fathom_engine_info shorter;
  memset(&shorter, 0xAB, sizeof shorter);
  shorter.struct_size = 12;
  CHECK_STATUS(fathom_engine_info_get(e, &shorter), FATHOM_OK);
  CHECK(shorter.vocab_size == 4096 && shorter.max_context == 0xABABABABu);
  shorter.struct_size = 0;
  CHECK_STATUS(fathom_engine_info_get(e, &shorter), FATHOM_ERR_ABI);
  CHECK_STATUS(fathom_engine_info_get(e, NULL), FATHOM_ERR_INVALID_ARGUMENT);

  /* A callback may not wait for an engine. */
  s = (seen){.other = e};
  CHECK_OK(fathom_engine_open(&o, &second, &err), err);
  CHECK(s.inside == FATHOM_ERR_STATE);
  CHECK(fathom_engine_state(e) == FATHOM_ENGINE_READY);
  CHECK_OK(fathom_engine_clear_cache(second, &err), err);

  CHECK_PARAM(fathom_engine_shutdown(e, -2, &err), FATHOM_ERR_INVALID_ARGUMENT, "drain_ms");
  CHECK_OK(fathom_engine_shutdown(e, 100, &err), err);
  CHECK(fathom_engine_state(e) == FATHOM_ENGINE_CLOSED);
  CHECK_OK(fathom_engine_shutdown(e, 0, &err), err); /* again */
  fathom_queue *q = NULL;
  CHECK_OK(fathom_queue_new(NULL, &q, &err), err);
  uint32_t token = 5;
  fathom_request_id id = 9;
  fathom_status refused = fathom_submit_tokens(e, q, &token, 1, NULL, &id, NULL);
  CHECK(refused == FATHOM_ERR_STATE || refused == FATHOM_ERR_SHUTDOWN);
  CHECK(id == 0);
  fathom_engine_free(e);
  /* The other one is untouched. */
  CHECK(fathom_engine_state(second) == FATHOM_ENGINE_READY);
  CHECK_OK(fathom_submit_tokens(second, q, &token, 1, NULL, &id, &err), err);
  fathom_queue_free(q); /* cancels it */
  fathom_engine_free(second);
}

static void plan(void) {
  fathom_engine_options o = options();
  fathom_error *err = NULL;
  fathom_engine *e = NULL;
  o.flags = FATHOM_ENGINE_PLAN_ONLY;
  CHECK_OK(fathom_engine_open(&o, &e, &err), err);
  CHECK(fathom_engine_state(e) == FATHOM_ENGINE_CLOSED);
  fathom_engine_info info = {.struct_size = sizeof info};
  CHECK_STATUS(fathom_engine_info_get(e, &info), FATHOM_OK);
  fathom_buf *b = NULL;
  CHECK_OK(fathom_engine_metrics(e, FATHOM_METRICS_JSON, &b, &err), err);
  check_buf(b, "\"plan\"");
  fathom_queue *q = NULL;
  CHECK_OK(fathom_queue_new(NULL, &q, &err), err);
  uint32_t token = 5;
  fathom_request_id id;
  CHECK_STATUS(fathom_submit_tokens(e, q, &token, 1, NULL, &id, NULL), FATHOM_ERR_STATE);
  fathom_engine_free(e);
  fathom_queue_free(q);
}

static void metrics(void) {
  fathom_engine_options o = options();
  fathom_error *err = NULL;
  fathom_engine *e = NULL;
  CHECK_OK(fathom_engine_open(&o, &e, &err), err);
  fathom_engine_stats stats = {.struct_size = sizeof stats};
  CHECK_STATUS(fathom_engine_stats_get(e, &stats), FATHOM_OK);
  CHECK(stats.requests_accepted == 0 && stats.kv_blocks_total > 0);
  CHECK_STATUS(fathom_engine_stats_get(e, NULL), FATHOM_ERR_INVALID_ARGUMENT);
  stats.struct_size = SIZE_MAX;
  CHECK_STATUS(fathom_engine_stats_get(e, &stats), FATHOM_ERR_ABI);
  fathom_buf *b = NULL;
  CHECK_OK(fathom_engine_metrics(e, FATHOM_METRICS_JSON, &b, &err), err);
  check_buf(b, "\"config\"");
  CHECK_OK(fathom_engine_metrics(e, FATHOM_METRICS_OPENMETRICS, &b, &err), err);
  check_buf(b, "# TYPE fathom_requests counter\n");
  CHECK_OK(fathom_engine_metrics(e, FATHOM_METRICS_STEPS, &b, &err), err);
  check_buf(b, "{\"steps\":[");
  b = NULL;
  CHECK_PARAM(fathom_engine_metrics(e, 0xFF, &b, &err), FATHOM_ERR_INVALID_ARGUMENT, "format");
  CHECK_PARAM(fathom_engine_metrics(e, FATHOM_METRICS_JSON, NULL, &err), FATHOM_ERR_INVALID_ARGUMENT, "out");
  CHECK_PARAM(fathom_profile_start(e, 1001, &err), FATHOM_ERR_INVALID_ARGUMENT, "max_steps");
  CHECK_STATUS(fathom_profile_stop(e, &b, NULL), FATHOM_ERR_STATE);
  CHECK(b == NULL);
  CHECK_OK(fathom_profile_start(e, 0, &err), err);
  CHECK_STATUS(fathom_profile_start(e, 5, NULL), FATHOM_ERR_STATE);
  CHECK_STATUS(fathom_profile_stop(e, NULL, NULL), FATHOM_ERR_INVALID_ARGUMENT);
  CHECK_OK(fathom_profile_stop(e, &b, &err), err);
  check_buf(b, "\"traceEvents\"");
  fathom_engine_free(e);
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  model = argv[1];
  opening_fails();
  life();
  plan();
  metrics();
  return 0;
}
