/* Every function with NULL, with stray pointers, with live handles of every other type, and with freed ones. */
#include "check.h"

#define BAD FATHOM_ERR_INVALID_ARGUMENT

/* Calls everything that takes a handle with `h`, which is none of `kind`. */
enum kind { NONE, ERROR, BUF, ENGINE, QUEUE, BATCH, RECIPE, PREPARED, PARSER, TOKENIZER, CONSTRAINT };

static fathom_batch *batch;
static fathom_buf *buf;

static void engines(void *h) {
  fathom_request_id id = 7;
  uint32_t token = 1;
  fathom_engine_info info = {.struct_size = sizeof info};
  fathom_engine_stats stats = {.struct_size = sizeof stats};
  CHECK(fathom_engine_state(h) == FATHOM_ENGINE_CLOSED);
  CHECK_STATUS(fathom_engine_info_get(h, &info), BAD);
  CHECK_STATUS(fathom_engine_shutdown(h, 0, NULL), BAD);
  CHECK_STATUS(fathom_engine_clear_cache(h, NULL), BAD);
  CHECK_STATUS(fathom_engine_stats_get(h, &stats), BAD);
  CHECK_STATUS(fathom_engine_metrics(h, FATHOM_METRICS_JSON, &buf, NULL), BAD);
  CHECK_STATUS(fathom_profile_start(h, 0, NULL), BAD);
  CHECK_STATUS(fathom_profile_stop(h, &buf, NULL), BAD);
  CHECK_STATUS(fathom_submit(h, h, h, NULL, &id, NULL), BAD);
  CHECK(id == 0);
  CHECK_STATUS(fathom_submit_tokens(h, h, &token, 1, NULL, &id, NULL), BAD);
  CHECK_STATUS(fathom_cancel(h, &id, 1), BAD);
  CHECK_STATUS(fathom_ack(h, &id, &token, 1), BAD);
  CHECK_STATUS(fathom_call(h, h, h, 1, "{}", 2, NULL, &id, NULL), BAD);
  CHECK_STATUS(fathom_call_blocking(h, h, 1, "{}", 2, NULL, &buf, NULL), BAD);
  fathom_engine_free(h);
}

static void queues(void *h) {
  const fathom_event *events;
  size_t count = 7;
  intptr_t fd = 0;
  CHECK_STATUS(fathom_queue_fd(h, &fd), BAD);
  CHECK(fd == -1);
  CHECK_STATUS(fathom_queue_on_ready(h, NULL, NULL, NULL), BAD);
  CHECK_STATUS(fathom_queue_poll(h, batch, 0, &events, &count, NULL), BAD);
  CHECK(events == NULL && count == 0);
  CHECK_STATUS(fathom_queue_wake(h), BAD);
  fathom_queue_free(h);
}

static void recipes(void *h) {
  fathom_prepared *p = NULL;
  fathom_tokenizer *t = NULL;
  CHECK_STATUS(fathom_prepare(h, 1, "{}", 2, &p, NULL), BAD);
  CHECK_STATUS(fathom_prepare_with(h, 1, "{}", 2, NULL, 0, &p, NULL), BAD);
  CHECK_STATUS(fathom_recipe_tokenizer(h, &t), BAD);
  CHECK(p == NULL && t == NULL);
  fathom_recipe_free(h);
}

static void prepareds(void *h) {
  fathom_prepared_info info = {.struct_size = sizeof info};
  fathom_image_source source = {.struct_size = sizeof source};
  const uint32_t *tokens;
  const char *text;
  const fathom_range *ranges;
  size_t count;
  fathom_parser *s = NULL;
  CHECK_STATUS(fathom_prepared_info_get(h, &info), BAD);
  CHECK_STATUS(fathom_prepared_tokens(h, &tokens, &count), BAD);
  CHECK_STATUS(fathom_prepared_prompt(h, &text, &count), BAD);
  CHECK_STATUS(fathom_prepared_special_ranges(h, &ranges, &count), BAD);
  CHECK_STATUS(fathom_prepared_options_json(h, &buf, NULL), BAD);
  CHECK_STATUS(fathom_prepared_image(h, 0, &source), BAD);
  CHECK_STATUS(fathom_prepared_image_pixels(h, 0, 1, &buf, NULL), BAD);
  CHECK_STATUS(fathom_prepared_set_image(h, 0, (const uint8_t *)"x", 1, NULL), BAD);
  CHECK_STATUS(fathom_prepared_fetch_images(h, NULL, NULL), BAD);
  CHECK_STATUS(fathom_parser_new(h, &s, NULL), BAD);
  fathom_prepared_free(h);
}

static void parsers(void *h) {
  const fathom_event *events;
  size_t count;
  uint32_t token = 1;
  fathom_chunk chunk = {.struct_size = sizeof chunk};
  CHECK_STATUS(fathom_parser_start(h, NULL, batch, &events, &count, NULL), BAD);
  CHECK_STATUS(fathom_parser_push(h, &chunk, batch, &events, &count, NULL), BAD);
  CHECK_STATUS(fathom_parser_push_tokens(h, &token, 1, batch, &events, &count, NULL), BAD);
  CHECK_STATUS(fathom_parser_push_text(h, "x", 1, 1, batch, &events, &count, NULL), BAD);
  CHECK_STATUS(fathom_parser_finish(h, FATHOM_FINISH_STOP, NULL, batch, &events, &count, NULL), BAD);
  CHECK_STATUS(fathom_parser_fail(h, 500, "x", 1, batch, &events, &count, NULL), BAD);
  CHECK_STATUS(fathom_parser_response(h, &buf, NULL), BAD);
  CHECK_STATUS(fathom_parser_diagnostics(h, &buf, NULL), BAD);
  fathom_parser_free(h);
}

static void tokenizers(void *h) {
  uint32_t token = 0;
  size_t needed = 7;
  const uint8_t *bytes;
  fathom_constraint *c = NULL;
  CHECK_STATUS(fathom_tokenizer_encode(h, "x", 1, 0, &token, 1, &needed, NULL), BAD);
  CHECK(needed == 0);
  CHECK_STATUS(fathom_tokenizer_decode(h, &token, 1, 0, &buf, NULL), BAD);
  CHECK_STATUS(fathom_tokenizer_token_bytes(h, 1, &bytes, &needed), BAD);
  CHECK_STATUS(fathom_tokenizer_token_id(h, "x", 1, &token), BAD);
  CHECK(fathom_tokenizer_vocab_size(h) == 0);
  CHECK_STATUS(fathom_constraint_new(h, 1, NULL, 0, &c, NULL), BAD);
  fathom_tokenizer_free(h);
}

static void all(void *h, enum kind kind) {
  if (kind != ENGINE) engines(h);
  if (kind != QUEUE) queues(h);
  if (kind != RECIPE) recipes(h);
  if (kind != PREPARED) prepareds(h);
  if (kind != PARSER) parsers(h);
  if (kind != TOKENIZER) tokenizers(h);
  if (kind != CONSTRAINT) {
    CHECK_STATUS(fathom_constraint_check(h, "x", 1, NULL), BAD);
    fathom_constraint_free(h);
  }
  if (kind != ERROR) fathom_error_free(h);
  if (kind != BUF) fathom_buf_free(h);
  if (kind != BATCH) {
    const fathom_event *events;
    size_t count;
    CHECK_STATUS(fathom_queue_poll(NULL, h, 0, &events, &count, NULL), BAD);
    fathom_batch_free(h);
  }
}

int main(int argc, char **argv) {
  CHECK_STATUS(fathom_batch_new(sizeof(fathom_event), &batch), FATHOM_OK);
  for (int i = 0; i < STRAY_COUNT; i++) all(stray(i), NONE);

  fathom_error *error = NULL;
  fathom_buf *bytes = NULL;
  CHECK_STATUS(fathom_devices(NULL, &error), BAD);
  CHECK_STATUS(fathom_devices(&bytes, NULL), FATHOM_OK);
  all(error, ERROR);
  all(bytes, BUF);
  all(batch, BATCH);

  /* Still what they were. */
  CHECK(fathom_error_message(error, NULL) != NULL);
  CHECK(fathom_buf_data(bytes, NULL) != NULL);

  /* The rest needs the rooms below. */
  if (argc > 1) {
    const char *model = argv[1];
    fathom_error *err = NULL;
    fathom_queue *queue = NULL;
    fathom_tokenizer *tokenizer = NULL;
    CHECK_OK(fathom_queue_new(NULL, &queue, &err), err);
    CHECK_OK(fathom_tokenizer_open(model, strlen(model), &tokenizer, &err), err);
    fathom_constraint *constraint = NULL;
    CHECK_OK(fathom_constraint_new(tokenizer, FATHOM_CONSTRAINT_REGEX, "a+", 2, &constraint, &err), err);
    fathom_recipe_options ro;
    fathom_recipe_options_init(&ro, sizeof ro);
    ro.tokenizer_path = str(model);
    fathom_recipe *recipe = NULL;
    CHECK_OK(fathom_recipe_open(&ro, &recipe, &err), err);
    const char *request = "{\"model\":\"DeepSeek-V4.1-Flash\",\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}";
    fathom_prepared *prepared = NULL;
    CHECK_OK(fathom_prepare(recipe, 1, request, strlen(request), &prepared, &err), err);
    fathom_parser *parser = NULL;
    CHECK_OK(fathom_parser_new(prepared, &parser, &err), err);
    fathom_engine_options eo;
    fathom_engine_options_init(&eo, sizeof eo);
    eo.model_path = str(model);
    eo.device = str("cpu");
    fathom_engine *engine = NULL;
    CHECK_OK(fathom_engine_open(&eo, &engine, &err), err);

    all(queue, QUEUE);
    all(tokenizer, TOKENIZER);
    all(constraint, CONSTRAINT);
    all(recipe, RECIPE);
    all(prepared, PREPARED);
    all(parser, PARSER);
    all(engine, ENGINE);
    CHECK(fathom_engine_state(engine) == FATHOM_ENGINE_READY);

    /* Parents before children; then everything once more. */
    fathom_engine_free(engine);
    fathom_recipe_free(recipe);
    fathom_prepared_free(prepared);
    const fathom_event *events;
    size_t count;
    CHECK_OK(fathom_parser_push_text(parser, "Hello", 5, 1, batch, &events, &count, &err), err);
    fathom_parser_free(parser);
    CHECK(fathom_tokenizer_vocab_size(tokenizer) > 0);
    fathom_tokenizer_free(tokenizer);
    CHECK_OK(fathom_constraint_check(constraint, "aa", 2, &err), err);
    fathom_constraint_free(constraint);
    fathom_queue_free(queue);
    void *freed[] = {engine, recipe, prepared, parser, tokenizer, constraint, queue};
    for (size_t i = 0; i < sizeof freed / sizeof *freed; i++) all(freed[i], NONE);
  }

  fathom_error_free(error);
  fathom_buf_free(bytes);
  all(error, NONE);
  all(bytes, NONE);
  fathom_batch *last = batch;
  fathom_batch_free(batch);
  all(last, NONE);
  return 0;
}
