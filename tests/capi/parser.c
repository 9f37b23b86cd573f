/* Parsers: streams of ids and text, the end in all its forms, wrong moments, two threads. */
#define NEEDS_MODEL
#include "check.h"
#include <pthread.h>

#define BAD FATHOM_ERR_INVALID_ARGUMENT

static fathom_recipe *r;
static fathom_batch *b;
static const fathom_event *ev;
static size_t n;
static fathom_error *err;

static fathom_parser *parser(const char *json) {
  fathom_prepared *p = NULL;
  fathom_parser *s = NULL;
  CHECK_OK(fathom_prepare(r, 1, json, strlen(json), &p, &err), err);
  CHECK_OK(fathom_parser_new(p, &s, &err), err);
  fathom_prepared_free(p); /* before its parser */
  return s;
}

static void check_event(size_t i, const char *piece) {
  CHECK(i < n);
  CHECK(ev[i].kind == FATHOM_EVENT_DATA && ev[i].request == 0);
  CHECK(ev[i].data.ptr[ev[i].data.len] == '\0');
  if (!has(ev[i].data.ptr, ev[i].data.len, piece)) {
    fprintf(stderr, "no %s in %s\n", piece, ev[i].data.ptr);
    exit(1);
  }
}

static void text(void) {
  fathom_parser *s = parser(CHAT("Hi") ",\"stream\":true}");
  fathom_parser_start_info info = {.struct_size = sizeof info, .prompt_tokens = 9, .created_unix_s = 42};
  info.response_id = str("chatcmpl-x");
  CHECK_OK(fathom_parser_start(s, &info, b, &ev, &n, &err), err);
  CHECK(n == 1);
  check_event(0, "\"id\":\"chatcmpl-x\"");
  check_event(0, "\"created\":42");
  CHECK(ev[0].name.ptr == NULL);
  CHECK_OK(fathom_parser_push_text(s, "Hello", 5, 1, b, &ev, &n, &err), err);
  CHECK(n == 1);
  check_event(0, "\"content\":\"Hello\"");
  CHECK_OK(fathom_parser_push_text(s, "", 0, 0, b, &ev, &n, &err), err);
  fathom_usage usage = {.prompt_tokens = 10};
  CHECK_OK(fathom_parser_finish(s, FATHOM_FINISH_LENGTH, &usage, b, &ev, &n, &err), err);
  CHECK(n >= 1);
  check_event(n - 1, "\"finish_reason\":\"length\"");
  check_event(n - 1, "\"prompt_tokens\":10");
  /* After the end. */
  CHECK_OK(fathom_parser_push_text(s, "more", 4, 1, b, &ev, &n, &err), err);
  CHECK(n == 0 && ev == NULL);
  CHECK_OK(fathom_parser_finish(s, FATHOM_FINISH_STOP, NULL, b, &ev, &n, &err), err);
  CHECK(n == 0);
  CHECK_OK(fathom_parser_fail(s, 500, "late", 4, b, &ev, &n, &err), err);
  CHECK(n == 0);
  fathom_buf *json = NULL;
  CHECK_OK(fathom_parser_response(s, &json, &err), err);
  check_buf(json, "\"object\":\"chat.completion\"");
  CHECK_OK(fathom_parser_diagnostics(s, &json, &err), err);
  check_buf(json, "[");
  fathom_parser_free(s);
}

static void ids(void) {
  fathom_tokenizer *t = NULL;
  CHECK_STATUS(fathom_recipe_tokenizer(r, &t), FATHOM_OK);
  uint32_t tokens[32], end = 0;
  size_t count = 0;
  CHECK_OK(fathom_tokenizer_encode(t, "Hello there", 11, 0, tokens, 31, &count, &err), err);
  CHECK_STATUS(fathom_tokenizer_token_id(t, "<｜end▁of▁sentence｜>", strlen("<｜end▁of▁sentence｜>"), &end), FATHOM_OK);
  tokens[count++] = end;
  fathom_parser *s = parser(CHAT("Hi") ",\"stream\":true}");
  CHECK_OK(fathom_parser_push_tokens(s, tokens, count, b, &ev, &n, &err), err);
  CHECK(n >= 2);
  /* The end token: DONE, and stop generating. */
  CHECK(ev[n - 1].kind == FATHOM_EVENT_DONE && ev[n - 1].finish == FATHOM_FINISH_STOP && ev[n - 1].data.ptr == NULL);
  CHECK_OK(fathom_parser_finish(s, FATHOM_FINISH_STOP, NULL, b, &ev, &n, &err), err);
  check_event(n - 1, "\"finish_reason\":\"stop\"");
  fathom_parser_free(s);

  s = parser(CHAT("Hi") ",\"stream\":true,\"stop\":[\" there\"]}");
  CHECK_OK(fathom_parser_push_tokens(s, tokens, count, b, &ev, &n, &err), err);
  CHECK(ev[n - 1].kind == FATHOM_EVENT_DONE && ev[n - 1].finish == FATHOM_FINISH_STOP);
  fathom_parser_free(s);

  s = parser(CHAT("Hi") "}");
  uint32_t outside = UINT32_MAX;
  CHECK(fathom_parser_push_tokens(s, &outside, 1, b, &ev, &n, NULL) != FATHOM_OK);
  CHECK(n == 0);
  /* The same again, until it is told. */
  CHECK(fathom_parser_push_tokens(s, tokens, 1, b, &ev, &n, NULL) != FATHOM_OK);
  fathom_parser_free(s);
  fathom_tokenizer_free(t);
}

static void failures(void) {
  fathom_parser *s = parser(CHAT("Hi") ",\"stream\":true}");
  CHECK_OK(fathom_parser_push_text(s, "Hello", 5, 1, b, &ev, &n, &err), err);
  CHECK_PARAM(fathom_parser_finish(s, FATHOM_FINISH_ERROR, NULL, b, &ev, &n, &err), BAD, "finish");
  CHECK_PARAM(fathom_parser_finish(s, FATHOM_FINISH_CANCELLED, NULL, b, &ev, &n, &err), BAD, "finish");
  CHECK_PARAM(fathom_parser_finish(s, 0xFF, NULL, b, &ev, &n, &err), BAD, "finish");
  CHECK_PARAM(fathom_parser_fail(s, 200, "x", 1, b, &ev, &n, &err), BAD, "http_status");
  CHECK_PARAM(fathom_parser_fail(s, -1, "x", 1, b, &ev, &n, &err), BAD, "http_status");
  CHECK_PARAM(fathom_parser_push(s, NULL, b, &ev, &n, &err), BAD, "chunk");
  CHECK_PARAM(fathom_parser_push_text(s, NULL, 1, 1, b, &ev, &n, &err), BAD, "text");
  CHECK_PARAM(fathom_parser_push_text(s, "\xE2", 1, 1, b, &ev, &n, &err), FATHOM_ERR_INVALID_UTF8, "text");
  CHECK_PARAM(fathom_parser_push_tokens(s, NULL, 1, b, &ev, &n, &err), BAD, "tokens");
  CHECK_PARAM(fathom_parser_push_text(s, "x", 1, 1, NULL, &ev, &n, &err), BAD, "b");
  uint32_t token = 5;
  fathom_chunk both = {.struct_size = sizeof both, .tokens = &token, .token_count = 1, .text = {"x", 1}};
  CHECK_PARAM(fathom_parser_push(s, &both, b, &ev, &n, &err), BAD, "text");
  both.text = str(NULL);
  both.top_count = 1;
  both.top_tokens = &token;
  CHECK_PARAM(fathom_parser_push(s, &both, b, &ev, &n, &err), BAD, "top_logprobs");
  both.struct_size = 2;
  CHECK_PARAM(fathom_parser_push(s, &both, b, &ev, &n, &err), FATHOM_ERR_ABI, "struct_size");
  fathom_parser_start_info info = {.struct_size = sizeof info, .reserved0 = 1};
  CHECK_PARAM(fathom_parser_start(s, &info, b, &ev, &n, &err), FATHOM_ERR_ABI, "reserved0");
  /* None of it ended the stream. */
  CHECK_OK(fathom_parser_fail(s, 503, "gone", 4, b, &ev, &n, &err), err);
  CHECK(n == 1);
  check_event(0, "{\"error\":{\"message\":\"gone\",\"type\":\"overloaded_error\"");
  fathom_parser_free(s);
}

/* Two threads in one parser: one of them may be told so, and nothing breaks. */
static fathom_parser *shared;

static void *pusher(void *own_batch) {
  fathom_status *answer = calloc(1, sizeof *answer);
  const fathom_event *events;
  size_t count;
  for (int i = 0; i < 2000; i++) {
    fathom_status s = fathom_parser_push_text(shared, "x", 1, 1, own_batch, &events, &count, NULL);
    CHECK(s == FATHOM_OK || s == FATHOM_ERR_STATE);
  }
  return answer;
}

static void threads(void) {
  shared = parser(CHAT("Hi") ",\"stream\":true}");
  pthread_t t[2];
  fathom_batch *own[2];
  for (int i = 0; i < 2; i++) {
    CHECK_STATUS(fathom_batch_new(sizeof(fathom_event), &own[i]), FATHOM_OK);
    CHECK(pthread_create(&t[i], NULL, pusher, own[i]) == 0);
  }
  for (int i = 0; i < 2; i++) {
    void *answer;
    pthread_join(t[i], &answer);
    free(answer);
    fathom_batch_free(own[i]);
  }
  fathom_parser_free(shared);
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  r = open_recipe(argv[1], NULL);
  CHECK_STATUS(fathom_batch_new(sizeof(fathom_event), &b), FATHOM_OK);
  text();
  ids();
  failures();
  threads();
  fathom_batch_free(b);
  fathom_recipe_free(r);
  return 0;
}
