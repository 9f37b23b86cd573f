/* The ready-made adapter: streams, whole answers, failures before and after the first event, and the same path
 * by hand. */
#define NEEDS_MODEL
#include "check.h"

#define BAD FATHOM_ERR_INVALID_ARGUMENT
#define STORY CHAT("Tell me a story about a fox named Lily.") ",\"temperature\":0,\"max_tokens\":40"

static world w;

/* Everything one call gave, events after one another, a line each. */
typedef struct answer {
  char text[65536];
  size_t len, events, tokens;
  int32_t finish;
  fathom_status status;
  int32_t http;
  fathom_usage usage;
  char detail[2048], body[1024];
} answer;

static answer a;

static void collect(fathom_request_id id) {
  memset(&a, 0, sizeof a);
  for (;;) {
    const fathom_event *ev;
    size_t n;
    fathom_error *err = NULL;
    CHECK_OK(fathom_queue_poll(w.q, w.b, -1, &ev, &n, &err), err);
    for (size_t i = 0; i < n; i++) {
      if (ev[i].request != id) continue;
      CHECK(ev[i].tag == 77);
      CHECK(ev[i].kind != FATHOM_EVENT_TOKENS);
      if (ev[i].kind == FATHOM_EVENT_DATA) {
        CHECK(ev[i].data.ptr[ev[i].data.len] == '\0');
        int wrote = snprintf(a.text + a.len, sizeof a.text - a.len, "%s\n", ev[i].data.ptr);
        CHECK(wrote > 0 && a.len + (size_t)wrote < sizeof a.text);
        a.len += (size_t)wrote;
        a.events++;
        a.tokens += ev[i].token_count;
        continue;
      }
      a.finish = ev[i].finish;
      a.usage = *ev[i].usage;
      snprintf(a.detail, sizeof a.detail, "%s", ev[i].detail.ptr);
      if (ev[i].error != NULL) {
        a.status = fathom_error_status(ev[i].error);
        a.http = fathom_error_http_status(ev[i].error);
        fathom_buf *b = NULL;
        CHECK_STATUS(fathom_error_body(ev[i].error, 1, &b), FATHOM_OK);
        snprintf(a.body, sizeof a.body, "%s", (const char *)fathom_buf_data(b, NULL));
        fathom_buf_free(b);
      }
      return;
    }
  }
}

static fathom_request_id call(const char *json, const char *options_json, const fathom_submit_options *given) {
  fathom_submit_options so;
  fathom_submit_options_init(&so, sizeof so);
  if (given != NULL) so = *given;
  so.tag = 77;
  fathom_call_options o;
  fathom_call_options_init(&o, sizeof o);
  o.submit = &so;
  o.response_id = str("chatcmpl-fixed");
  o.created_unix_s = 1;
  o.options_json = str(options_json);
  fathom_request_id id = 0;
  fathom_error *err = NULL;
  CHECK_OK(fathom_call(w.e, w.r, w.q, FATHOM_PROTOCOL_CHAT_COMPLETIONS, json, strlen(json), &o, &id, &err), err);
  CHECK(id != 0);
  return id;
}

static void contains(const char *text, const char *piece) {
  if (strstr(text, piece) == NULL) {
    fprintf(stderr, "no %s in %s\n", piece, text);
    exit(1);
  }
}

static char streamed[65536];

static void good(void) {
  collect(call(STORY ",\"stream\":true}", NULL, NULL));
  CHECK(a.events > 3 && a.status == FATHOM_OK && a.finish == FATHOM_FINISH_LENGTH);
  contains(a.text, "\"object\":\"chat.completion.chunk\"");
  contains(a.text, "\"id\":\"chatcmpl-fixed\"");
  contains(a.text, "\"finish_reason\":\"length\"");
  contains(a.detail, "\"seed\":");
  CHECK(a.usage.completion_tokens == 40 && a.tokens <= 40);
  memcpy(streamed, a.text, sizeof streamed);

  collect(call(STORY "}", NULL, NULL));
  CHECK(a.events == 1 && a.finish == FATHOM_FINISH_LENGTH);
  contains(a.text, "\"object\":\"chat.completion\"");
  contains(a.text, "\"finish_reason\":\"length\"");

  /* Waiting for the whole answer, whatever the request says of streams. */
  fathom_buf *b = NULL;
  fathom_error *err = NULL;
  const char *json = STORY ",\"stream\":true}";
  CHECK_OK(fathom_call_blocking(w.e, w.r, 1, json, strlen(json), NULL, &b, &err), err);
  check_buf(b, "\"object\":\"chat.completion\"");
}

static void ends(void) {
  /* A stop sequence ends at once; the engine's haste is not counted. */
  collect(call(STORY ",\"stream\":true,\"stop\":[\"a\"]}", NULL, NULL));
  CHECK(a.finish == FATHOM_FINISH_STOP && a.status == FATHOM_OK);
  contains(a.text, "\"finish_reason\":\"stop\"");
  contains(a.detail, "\"reason\":\"stop\"");
  contains(a.detail, "\"stop\":\"a\"");
  CHECK(a.usage.completion_tokens < 40);

  collect(call("{\"model\":\"DeepSeek-V4.1-Flash\",\"temperature\":0,\"thinking\":{\"type\":\"disabled\"},\"messages\":"
               "[{\"role\":\"user\",\"content\":\"Who are you?\"}],\"max_tokens\":200}", NULL, NULL));
  CHECK(a.finish == FATHOM_FINISH_STOP);
  contains(a.text, "\"finish_reason\":\"stop\"");
}

static void failures(void) {
  /* Before the first event: only DONE, and the server writes the body. */
  collect(call("{\"model\":\"gpt-1\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"stream\":true}", NULL, NULL));
  CHECK(a.events == 0 && a.finish == FATHOM_FINISH_ERROR);
  CHECK(a.status == FATHOM_ERR_UNKNOWN_MODEL && a.http == 400);
  contains(a.body, "\"param\":null");
  collect(call("{\"model\":\"gpt-1\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}", "{\"error_param\":true}", NULL));
  contains(a.body, "\"param\":\"model\"");
  collect(call("nonsense", NULL, NULL));
  CHECK(a.status == FATHOM_ERR_INVALID_JSON && a.events == 0);
  collect(call(STORY "}", "{\"no_such_option\":1}", NULL));
  CHECK(a.status == BAD && a.http == 500);
  collect(call(STORY ",\"response_format\":{\"type\":\"json_object\"}}", NULL, NULL));
  CHECK_STATUS(a.status, FATHOM_ERR_INVALID_REQUEST);

  /* After it: the protocol's error event, too. */
  fathom_submit_options so;
  fathom_submit_options_init(&so, sizeof so);
  so.params_json = str("{\"ignore_eos\":true}");
  const char *endless = CHAT("Hi") ",\"stream\":true,\"max_tokens\":3000}";
  fathom_request_id id = call(endless, NULL, &so);
  const fathom_event *ev;
  size_t n = 0;
  int told = 0;
  while (!told) {
    CHECK_STATUS(fathom_queue_poll(w.q, w.b, -1, &ev, &n, NULL), FATHOM_OK);
    for (size_t i = 0; i < n; i++) {
      CHECK(ev[i].kind == FATHOM_EVENT_DATA);
      told = 1;
    }
  }
  CHECK_STATUS(fathom_cancel(w.e, &id, 1), FATHOM_OK);
  collect(id);
  /* It may have ended by itself just before: the end token is the parser's end. */
  if (a.finish == FATHOM_FINISH_CANCELLED) {
    CHECK(a.status == FATHOM_ERR_CANCELLED);
    contains(a.text, "{\"error\":{\"message\":");
  }

  /* Misuse fails at once. */
  fathom_call_options o;
  fathom_call_options_init(&o, sizeof o);
  CHECK_PARAM(fathom_call(w.e, w.r, w.q, 0xFF, "{}", 2, &o, &id, &err), BAD, "protocol");
  CHECK_PARAM(fathom_call(w.e, w.r, w.q, 1, NULL, 2, &o, &id, &err), BAD, "json");
  CHECK_PARAM(fathom_call(w.e, w.r, w.q, 1, "{}", 2, &o, NULL, &err), BAD, "out");
  so.params_json = str("{\"n\":2}");
  o.submit = &so;
  CHECK_PARAM(fathom_call(w.e, w.r, w.q, 1, "{}", 2, &o, &id, &err), BAD, "n");
  fathom_fetch_policy policy = {.struct_size = sizeof policy, .flags = 0xFF};
  o.submit = NULL;
  o.fetch = &policy;
  CHECK_PARAM(fathom_call(w.e, w.r, w.q, 1, "{}", 2, &o, &id, &err), BAD, "flags");
  o.fetch = NULL;
  o.struct_size = 1;
  CHECK_PARAM(fathom_call(w.e, w.r, w.q, 1, "{}", 2, &o, &id, &err), FATHOM_ERR_ABI, "struct_size");
  fathom_buf *b = NULL;
  CHECK_STATUS(fathom_call_blocking(w.e, w.r, 1, "nonsense", 8, NULL, &b, NULL), FATHOM_ERR_INVALID_JSON);
  CHECK(b == NULL);
}

/* Appends DATA of a parser's step. */
static void append(const fathom_event *ev, size_t n, int *ended) {
  for (size_t i = 0; i < n; i++) {
    if (ev[i].kind == FATHOM_EVENT_DONE) {
      *ended = 1;
      continue;
    }
    a.len += (size_t)snprintf(a.text + a.len, sizeof a.text - a.len, "%s\n", ev[i].data.ptr);
  }
}

/* prepare, submit, poll, parse: the same events as the call. */
static void by_hand(void) {
  memset(&a, 0, sizeof a);
  const char *json = STORY ",\"stream\":true}";
  fathom_error *err = NULL;
  fathom_prepared *p = NULL;
  CHECK_OK(fathom_prepare(w.r, 1, json, strlen(json), &p, &err), err);
  fathom_parser *s = NULL;
  CHECK_OK(fathom_parser_new(p, &s, &err), err);
  fathom_request_id id;
  CHECK_OK(fathom_submit(w.e, w.q, p, NULL, &id, &err), err);
  fathom_batch *own = NULL;
  CHECK_STATUS(fathom_batch_new(sizeof(fathom_event), &own), FATHOM_OK);
  for (int done = 0, ended = 0; !done;) {
    const fathom_event *ev, *made;
    size_t n, count;
    CHECK_STATUS(fathom_queue_poll(w.q, w.b, -1, &ev, &n, NULL), FATHOM_OK);
    for (size_t i = 0; i < n; i++) {
      if (ev[i].kind == FATHOM_EVENT_TOKENS) {
        if (ev[i].usage != NULL) {
          fathom_parser_start_info info = {.struct_size = sizeof info, .created_unix_s = 1};
          info.prompt_tokens = ev[i].usage->prompt_tokens;
          info.cached_tokens = ev[i].usage->cached_tokens;
          info.response_id = str("chatcmpl-fixed");
          CHECK_OK(fathom_parser_start(s, &info, own, &made, &count, &err), err);
          append(made, count, &ended);
        }
        CHECK_OK(fathom_parser_push_tokens(s, ev[i].tokens, ev[i].token_count, own, &made, &count, &err), err);
        append(made, count, &ended);
        continue;
      }
      CHECK_OK(fathom_parser_finish(s, ev[i].finish, ev[i].usage, own, &made, &count, &err), err);
      append(made, count, &ended);
      done = 1;
    }
  }
  fathom_parser_free(s);
  fathom_prepared_free(p);
  fathom_batch_free(own);
  /* Spans fall where they fall: the texts are compared with the seams removed. */
  CHECK(strstr(a.text, "\"finish_reason\":\"length\"") != NULL);
  const char *piece = "\"content\":\"";
  char merged[2][16384];
  const char *both[2] = {streamed, a.text};
  for (int k = 0; k < 2; k++) {
    size_t len = 0;
    for (const char *at = both[k]; (at = strstr(at, piece)) != NULL;) {
      at += strlen(piece);
      const char *end = strstr(at, "\"}");
      CHECK(end != NULL && len + (size_t)(end - at) < sizeof merged[k]);
      memcpy(merged[k] + len, at, (size_t)(end - at));
      len += (size_t)(end - at);
    }
    merged[k][len] = '\0';
  }
  CHECK(strlen(merged[0]) > 20 && strcmp(merged[0], merged[1]) == 0);
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  w = open_world(argv[1]);
  good();
  by_hand();
  ends();
  failures();
  close_world(w);
  return 0;
}
