/* Answers of Messages and of the neutral protocol: what a call streams, the same path by hand, and the whole answer. */
#define NEEDS_MODEL
#include "check.h"

#define MESSAGES FATHOM_PROTOCOL_MESSAGES
#define NEUTRAL FATHOM_PROTOCOL_CONVERSATION
#define ASK(text) "\"messages\":[{\"role\":\"user\",\"content\":\"" text "\"}]"
#define M(thinking) "{\"model\":\"DeepSeek-V4.1-Flash\",\"thinking\":{\"type\":\"" thinking "\"},"
#define C(thinking) "{\"encoding\":\"v4.1\",\"thinking_mode\":" thinking ","
#define STORY ASK("Tell me a story about a fox named Lily.")
#define SUM ASK("What is 23 + 45?")
/* The calculator of the demo model's training; only the name of its schema differs. */
#define ADD(schema) "\"tools\":[{\"name\":\"search\",\"description\":\"Search the web\",\"" schema "\":{\"type\":\"object\"," \
  "\"properties\":{\"query\":{\"type\":\"string\"}},\"required\":[\"query\"]}},{\"name\":\"add\",\"description\":" \
  "\"Add two numbers\",\"" schema "\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"number\"},\"b\":" \
  "{\"type\":\"number\"}},\"required\":[\"a\",\"b\"]}}]," ASK("What is 312 plus 45?")

static world w;

/* Events as lines of name and data. Where one delta ends and the next begins is a matter of timing, so neighbours
 * that say the same of different texts are one line. */
typedef struct lines {
  char text[65536];
  size_t len, last, events;
} lines;

/* Where the text of a delta begins, 0 if the line has none. */
static size_t seam(const char *line) {
  static const char *const fields[] = {"\"text\":\"", "\"thinking\":\"", "\"partial_json\":\""};
  for (size_t i = 0; i < 3; i++) {
    const char *at = strstr(line, fields[i]);
    if (at != NULL) return (size_t)(at - line) + strlen(fields[i]);
  }
  return 0;
}

static void append(lines *l, const fathom_event *ev) {
  CHECK(ev->name.ptr != NULL && ev->name.ptr[ev->name.len] == '\0');
  CHECK(ev->data.ptr[ev->data.len] == '\0');
  char line[32768];
  int wrote = snprintf(line, sizeof line, "%s %s\n", ev->name.ptr, ev->data.ptr);
  CHECK(wrote > 0 && (size_t)wrote < sizeof line && l->len + (size_t)wrote < sizeof l->text);
  l->events++;
  size_t from = seam(line);
  char *last = l->text + l->last;
  if (from > 0 && strncmp(ev->name.ptr, "content_block_start", 19) != 0 && l->len > 0 && strncmp(last, line, from) == 0) {
    /* Over the quote that ends the text before. */
    l->len = (size_t)(strrchr(last, '"') - l->text);
    strcpy(l->text + l->len, line + from);
    l->len += strlen(line + from);
    return;
  }
  l->last = l->len;
  memcpy(l->text + l->len, line, (size_t)wrote + 1);
  l->len += (size_t)wrote;
}

static void contains(const char *text, const char *piece) {
  if (strstr(text, piece) == NULL) {
    fprintf(stderr, "no %s in %s\n", piece, text);
    exit(1);
  }
}

/* The likeliest answer; no prompt is cached, for the second run would say so. */
static fathom_submit_options submit_options(const char *params) {
  fathom_submit_options so;
  fathom_submit_options_init(&so, sizeof so);
  so.flags = FATHOM_SUBMIT_NO_CACHE;
  so.temperature = 0;
  so.params_json = str(params);
  return so;
}

static fathom_request_id start_call(int32_t protocol, const char *json, const char *options, const char *params) {
  fathom_submit_options so = submit_options(params);
  fathom_call_options o;
  fathom_call_options_init(&o, sizeof o);
  o.submit = &so;
  o.response_id = str("id-fixed");
  o.created_unix_s = 1;
  o.options_json = str(options);
  fathom_request_id id = 0;
  fathom_error *err = NULL;
  CHECK_OK(fathom_call(w.e, w.r, w.q, protocol, json, strlen(json), &o, &id, &err), err);
  return id;
}

/* Everything a call gives; its finish. */
static int32_t collect(fathom_request_id id, lines *l) {
  for (;;) {
    const fathom_event *ev;
    size_t n;
    CHECK_STATUS(fathom_queue_poll(w.q, w.b, -1, &ev, &n, NULL), FATHOM_OK);
    for (size_t i = 0; i < n; i++) {
      CHECK(ev[i].request == id);
      if (ev[i].kind == FATHOM_EVENT_DATA) {
        append(l, &ev[i]);
        continue;
      }
      CHECK(ev[i].kind == FATHOM_EVENT_DONE);
      return ev[i].finish;
    }
  }
}

static void append_made(const fathom_event *made, size_t count, lines *l) {
  for (size_t i = 0; i < count; i++)
    if (made[i].kind == FATHOM_EVENT_DATA) append(l, &made[i]);
}

/* prepare, submit, poll, parse; the whole answer of the parser. */
static fathom_buf *by_hand(int32_t protocol, const char *json, const char *options, lines *l) {
  fathom_error *err = NULL;
  fathom_prepared *p = NULL;
  size_t options_len = options == NULL ? 0 : strlen(options);
  CHECK_OK(fathom_prepare_with(w.r, protocol, json, strlen(json), options, options_len, &p, &err), err);
  fathom_parser *s = NULL;
  CHECK_OK(fathom_parser_new(p, &s, &err), err);
  fathom_submit_options so = submit_options(NULL);
  fathom_request_id id;
  CHECK_OK(fathom_submit(w.e, w.q, p, &so, &id, &err), err);
  fathom_batch *own = NULL;
  CHECK_STATUS(fathom_batch_new(sizeof(fathom_event), &own), FATHOM_OK);
  for (int done = 0; !done;) {
    const fathom_event *ev, *made;
    size_t n, count;
    CHECK_STATUS(fathom_queue_poll(w.q, w.b, -1, &ev, &n, NULL), FATHOM_OK);
    for (size_t i = 0; i < n; i++) {
      if (ev[i].kind == FATHOM_EVENT_TOKENS) {
        if (ev[i].usage != NULL) {
          fathom_parser_start_info info = {.struct_size = sizeof info, .created_unix_s = 1};
          info.prompt_tokens = ev[i].usage->prompt_tokens;
          info.cached_tokens = ev[i].usage->cached_tokens;
          info.response_id = str("id-fixed");
          CHECK_OK(fathom_parser_start(s, &info, own, &made, &count, &err), err);
          append_made(made, count, l);
        }
        CHECK_OK(fathom_parser_push_tokens(s, ev[i].tokens, ev[i].token_count, own, &made, &count, &err), err);
      } else {
        CHECK_OK(fathom_parser_finish(s, ev[i].finish, ev[i].usage, own, &made, &count, &err), err);
        done = 1;
      }
      append_made(made, count, l);
    }
  }
  fathom_buf *whole = NULL;
  CHECK_OK(fathom_parser_response(s, &whole, &err), err);
  fathom_parser_free(s);
  fathom_prepared_free(p);
  fathom_batch_free(own);
  return whole;
}

/* Takes the count of tokens out: with a stop sequence it includes those that came together with the stop. */
static void without_count(char *text) {
  static const char *const keys[] = {"\"output_tokens\":", "\"completion_tokens\":"};
  for (size_t i = 0; i < 2; i++) {
    for (char *at = text; (at = strstr(at, keys[i])) != NULL;) {
      at += strlen(keys[i]);
      size_t digits = strspn(at, "0123456789");
      memmove(at, at + digits, strlen(at + digits) + 1);
    }
  }
}

/* Both texts are the same bytes. */
static void same(const char *one, const char *other, int counts) {
  static char copies[2][65536];
  snprintf(copies[0], sizeof copies[0], "%s", one);
  snprintf(copies[1], sizeof copies[1], "%s", other);
  for (int i = 0; i < 2 && !counts; i++) without_count(copies[i]);
  if (strcmp(copies[0], copies[1]) != 0) {
    fprintf(stderr, "%s\n\nby hand\n%s\n", copies[0], copies[1]);
    exit(1);
  }
}

static lines streamed, manual;

/* Calls `json`, which has room for more members at its end, and goes the same path by hand: the events must be the same
 * bytes, and the whole answer of the call the one of the parser. */
static void check(int32_t protocol, const char *json, const char *options, int32_t finish, const char *const *pieces) {
  char body[4096];
  memset(&streamed, 0, sizeof streamed);
  memset(&manual, 0, sizeof manual);
  CHECK(snprintf(body, sizeof body, "%s,\"stream\":true}", json) < (int)sizeof body);
  CHECK(collect(start_call(protocol, body, options, NULL), &streamed) == finish);
  fathom_buf *whole = by_hand(protocol, body, options, &manual);
  int counts = strstr(streamed.text, "\"stop_sequence\":\"") == NULL;
  same(streamed.text, manual.text, counts);
  for (; *pieces != NULL; pieces++) contains(streamed.text, *pieces);

  CHECK(snprintf(body, sizeof body, "%s,\"stream\":false}", json) < (int)sizeof body);
  fathom_submit_options so = submit_options(NULL);
  fathom_call_options o;
  fathom_call_options_init(&o, sizeof o);
  o.submit = &so;
  o.response_id = str("id-fixed");
  o.options_json = str(options);
  fathom_buf *answer = NULL;
  fathom_error *err = NULL;
  CHECK_OK(fathom_call_blocking(w.e, w.r, protocol, body, strlen(body), &o, &answer, &err), err);
  const char *one = (const char *)fathom_buf_data(answer, NULL), *other = (const char *)fathom_buf_data(whole, NULL);
  same(one, other, counts);
  for (pieces++; *pieces != NULL; pieces++) contains(one, *pieces);
  fathom_buf_free(answer);
  fathom_buf_free(whole);
}

/* Pieces of the stream, NULL, pieces of the whole answer, NULL. */
#define CASE(protocol, json, options, finish, ...) \
  check(protocol, json, options, finish, (const char *const[]){__VA_ARGS__, NULL})
#define SEEDED "{\"id_seed\":1}"

static void messages(void) {
  CASE(MESSAGES, M("disabled") STORY ",\"max_tokens\":40", NULL, FATHOM_FINISH_LENGTH,
       "message_start {\"type\":\"message_start\",\"message\":{\"id\":\"id-fixed\"",
       "content_block_start {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\"",
       "ping {\"type\":\"ping\"}\n", "\"delta\":{\"type\":\"text_delta\",\"text\":\"Once upon a time",
       "\"delta\":{\"stop_reason\":\"max_tokens\",\"stop_sequence\":null}", "\"output_tokens\":40",
       "message_stop {\"type\":\"message_stop\"}\n", NULL,
       "\"content\":[{\"type\":\"text\",\"text\":\"Once upon a time", "\"stop_reason\":\"max_tokens\"");
  CHECK(streamed.events > 6);

  CASE(MESSAGES, M("enabled") SUM ",\"max_tokens\":200", NULL, FATHOM_FINISH_STOP,
       "\"index\":0,\"delta\":{\"type\":\"thinking_delta\",\"thinking\":\"23 + 45: ones 3 + 5 = 8. tens 2 + 4 = 6. So 68.\"}",
       "\"index\":0,\"delta\":{\"type\":\"signature_delta\",\"signature\":\"id-fixed\"}",
       "\"index\":1,\"delta\":{\"type\":\"text_delta\",\"text\":\"23 + 45 = 68\"}", "\"stop_reason\":\"end_turn\"", NULL,
       "So 68.\",\"signature\":\"id-fixed\"},{\"type\":\"text\",\"text\":\"23 + 45 = 68\"}],\"stop_reason\":\"end_turn\"");

  CASE(MESSAGES, M("disabled") ADD("input_schema") ",\"max_tokens\":400", SEEDED, FATHOM_FINISH_TOOL_CALLS,
       "\"content_block\":{\"type\":\"tool_use\",\"id\":\"call_00_", "\"name\":\"add\",\"input\":{}}",
       "\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":\"{\\\"a\\\": 312, \\\"b\\\": 45}\"}",
       "\"stop_reason\":\"tool_use\"", NULL, "\"name\":\"add\",\"input\":{\"a\": 312, \"b\": 45}}],\"stop_reason\":\"tool_use\"");

  CASE(MESSAGES, M("disabled") STORY ",\"max_tokens\":40,\"stop_sequences\":[\"xyz\",\" time\"]", "{\"signature\":\"s\"}",
       FATHOM_FINISH_STOP, "\"text_delta\",\"text\":\"Once upon a\"}",
       "\"delta\":{\"stop_reason\":\"stop_sequence\",\"stop_sequence\":\" time\"}", NULL,
       "\"text\":\"Once upon a\"}],\"stop_reason\":\"stop_sequence\",\"stop_sequence\":\" time\"");
}

static void neutral(void) {
#define BUDGET(n) ",\"inference\":{\"max_tokens\":" n "}"
  CASE(NEUTRAL, C("false") STORY BUDGET("40"), NULL, FATHOM_FINISH_LENGTH,
       "start {\"system_fingerprint\":null,\"prompt_tokens\":", "content {\"text\":\"Once upon a time",
       "finish {\"reason\":\"length\",\"stop_sequence\":null,\"usage\":{\"prompt_tokens\":", "\"completion_tokens\":40",
       NULL, "{\"reasoning\":null,\"content\":\"Once upon a time", "\"tool_calls\":[],\"finish_reason\":\"length\"");

  CASE(NEUTRAL, C("true") "\"reasoning_effort\":\"high\"," SUM BUDGET("200"), NULL, FATHOM_FINISH_STOP,
       "reasoning {\"text\":\"23 + 45: ones 3 + 5 = 8. tens 2 + 4 = 6. So 68.\"}\n", "content {\"text\":\"23 + 45 = 68\"}\n",
       "finish {\"reason\":\"stop\"", NULL,
       "So 68.\",\"content\":\"23 + 45 = 68\",\"tool_calls\":[],\"finish_reason\":\"stop\"");
  CHECK(strstr(streamed.text, "\"reasoning_tokens\":null") == NULL);

  CASE(NEUTRAL, C("false") ADD("parameters") BUDGET("400"), SEEDED, FATHOM_FINISH_TOOL_CALLS,
       "tool_call {\"index\":0,\"id\":\"call_00_", "tool_call_arguments {\"index\":0,\"text\":\"{\\\"a\\\": 312, \\\"b\\\": 45}\"}\n",
       "finish {\"reason\":\"tool_calls\"", NULL, "\"name\":\"add\",\"arguments\":\"{\\\"a\\\": 312, \\\"b\\\": 45}\"}]");

  const char *stops = C("false") STORY BUDGET("40") ",\"parsing\":{\"stop_sequences\":[\" time\"]}";
  CASE(NEUTRAL, stops, NULL, FATHOM_FINISH_STOP, "content {\"text\":\"Once upon a\"}\n",
       "finish {\"reason\":\"stop_sequence\",\"stop_sequence\":\" time\"", NULL, "\"content\":\"Once upon a\",");
  CASE(NEUTRAL, stops, "{\"include_stop_sequence\":true}", FATHOM_FINISH_STOP, "content {\"text\":\"Once upon a time\"}\n", NULL,
       "\"content\":\"Once upon a time\",");

  /* Text with a gap, and an instruction: what the demo model says to them is of no meaning, but it is an answer. */
  CASE(NEUTRAL, C("false") "\"fim\":{\"prefix\":\"Once upon a time, there \",\"suffix\":\" a fox.\"}" BUDGET("12"), NULL,
       FATHOM_FINISH_LENGTH, "content {\"text\":\"", "\"completion_tokens\":12", NULL, "\"finish_reason\":\"length\"");
  CASE(NEUTRAL, C("false") "\"task\":\"title\"," STORY BUDGET("12"), NULL, FATHOM_FINISH_LENGTH, "content {\"text\":\"",
       "\"completion_tokens\":12", NULL, "\"finish_reason\":\"length\"");
}

/* A failure after the first event is the protocol's error event. */
static void cancelled(int32_t protocol, const char *json, const char *error) {
  fathom_request_id id = start_call(protocol, json, NULL, "{\"ignore_eos\":true}");
  const fathom_event *ev;
  size_t n = 0;
  memset(&streamed, 0, sizeof streamed);
  while (streamed.events == 0) {
    CHECK_STATUS(fathom_queue_poll(w.q, w.b, -1, &ev, &n, NULL), FATHOM_OK);
    for (size_t i = 0; i < n; i++) append(&streamed, &ev[i]);
  }
  CHECK_STATUS(fathom_cancel(w.e, &id, 1), FATHOM_OK);
  /* It may have ended by itself just before: the end token is the parser's end. */
  if (collect(id, &streamed) == FATHOM_FINISH_CANCELLED) contains(streamed.text, error);
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  w = open_world(argv[1]);
  messages();
  neutral();
  cancelled(MESSAGES, M("disabled") STORY ",\"max_tokens\":3000,\"stream\":true}",
            "\nerror {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"");
  cancelled(NEUTRAL, C("false") STORY BUDGET("3000") ",\"stream\":true}", "\nerror {\"status\":499,\"message\":\"");
  close_world(w);
  return 0;
}
