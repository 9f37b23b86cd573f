/* Injected panics become statuses, and the process lives. Only for libraries built with `fault-injection`. */
#define NEEDS_MODEL
#include "check.h"

static int logged;

static void log_fn(void *user_data, int32_t level, const char *target, size_t target_len, const char *message,
                   size_t message_len) {
  (void)user_data;
  if (level == 1 && target_len == 5 && memcmp(target, "panic", 5) == 0 && has(message, message_len, "injected into"))
    logged++;
}

static world w;

/* The status of a request whose call wishes a layer to panic, as DONE tells it. */
static fathom_status call(const char *options_json, const char *expected) {
  const char *json = CHAT("Hi") ",\"max_tokens\":4,\"stream\":true}";
  fathom_call_options o;
  fathom_call_options_init(&o, sizeof o);
  o.options_json = str(options_json);
  fathom_request_id id;
  CHECK_STATUS(fathom_call(w.e, w.r, w.q, 1, json, strlen(json), &o, &id, NULL), FATHOM_OK);
  for (;;) {
    const fathom_event *ev;
    size_t n;
    CHECK_STATUS(fathom_queue_poll(w.q, w.b, -1, &ev, &n, NULL), FATHOM_OK);
    for (size_t i = 0; i < n; i++) {
      if (ev[i].kind != FATHOM_EVENT_DONE) continue;
      if (ev[i].error == NULL) return FATHOM_OK;
      CHECK(ev[i].finish == FATHOM_FINISH_ERROR);
      const char *message = fathom_error_message(ev[i].error, NULL);
      if (strstr(message, expected) == NULL || strstr(message, ".rs:") == NULL) {
        fprintf(stderr, "no \"%s\" with a place in \"%s\"\n", expected, message);
        exit(1);
      }
      return fathom_error_status(ev[i].error);
    }
  }
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  w = open_world(argv[1]);
  CHECK_STATUS(fathom_set_log(1, log_fn, NULL, NULL), FATHOM_OK);

  const char *json = CHAT("Hi") "}", *wish = "{\"inject_panic\":\"capi\"}";
  fathom_prepared *p = NULL;
  fathom_error *err = NULL;
  CHECK_STATUS(fathom_prepare_with(w.r, 1, json, strlen(json), wish, strlen(wish), &p, &err), FATHOM_ERR_PANIC);
  CHECK(p == NULL && strstr(fathom_error_message(err, NULL), "injected into capi") != NULL);
  CHECK(fathom_error_http_status(err) == 500);
  fathom_error_free(err);
  CHECK(logged == 1);

  CHECK_STATUS(call("{\"inject_panic\":\"call\"}", "injected into call"), FATHOM_ERR_PANIC);
  CHECK_STATUS(call("{\"inject_panic\":\"recipe\"}", "injected into recipe"), FATHOM_ERR_PANIC);
  CHECK_STATUS(call("{\"inject_panic\":\"parser\"}", "injected into parser"), FATHOM_ERR_PANIC);
  CHECK(logged == 4);
  CHECK_STATUS(call(NULL, ""), FATHOM_OK);
  CHECK(fathom_engine_state(w.e) == FATHOM_ENGINE_READY);
  CHECK_STATUS(fathom_set_log(0, NULL, NULL, NULL), FATHOM_OK);
  close_world(w);
  return 0;
}
