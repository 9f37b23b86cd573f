/* The Responses protocol from request to events: by the ready-made adapter and by hand, which must agree. */
#define NEEDS_MODEL
#include "check.h"

#define HEAD "{\"model\":\"DeepSeek-V4.1-Flash\",\"temperature\":0,\"stream\":true,"
#define CALM "\"reasoning\":{\"effort\":\"none\"},"
#define SEED "{\"id_seed\":7}"

#define STORY HEAD CALM "\"input\":\"Tell me a story about a fox named Lily.\"}"
#define CUT HEAD CALM "\"max_output_tokens\":12,\"input\":\"Tell me a story about a fox named Lily.\"}"
#define SUM HEAD "\"reasoning\":{\"effort\":\"high\"},\"input\":\"What is 86 - 52?\"}"
#define WEATHER                                                                                                  \
  HEAD CALM "\"input\":\"What is the weather in Paris in celsius?\",\"tools\":[{\"type\":\"function\","         \
            "\"name\":\"get_weather\",\"description\":\"Get the current weather of a city\",\"parameters\":"     \
            "{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"},\"unit\":{\"type\":\"string\"," \
            "\"enum\":[\"celsius\",\"fahrenheit\"]}},\"required\":[\"city\"]}}]}"
#define PERSON                                                                                                   \
  HEAD CALM "\"input\":\"Extract the data in json: Anna is 7 years old.\",\"text\":{\"format\":"                 \
            "{\"type\":\"json_object\"}}}"

static world w;

/* Everything one request gave: a name and a document a line. */
typedef struct answer {
  char text[262144];
  size_t len, events;
  int32_t finish;
  fathom_status status;
  char param[64];
} answer;

static answer called, by_hand;

static void add(answer *a, const fathom_event *ev) {
  CHECK(ev->data.ptr[ev->data.len] == '\0');
  int wrote = snprintf(a->text + a->len, sizeof a->text - a->len, "%s\n", ev->data.ptr);
  CHECK(wrote > 0 && a->len + (size_t)wrote < sizeof a->text);
  a->len += (size_t)wrote;
  a->events++;
  if (ev->name.ptr == NULL) return;
  /* The name is the type. */
  char type[128];
  snprintf(type, sizeof type, "{\"type\":\"%s\",", ev->name.ptr);
  CHECK(strncmp(ev->data.ptr, type, strlen(type)) == 0);
}

static void call(const char *json) {
  memset(&called, 0, sizeof called);
  fathom_call_options o;
  fathom_call_options_init(&o, sizeof o);
  o.response_id = str("resp_fixed");
  o.created_unix_s = 1;
  o.options_json = str(SEED);
  fathom_request_id id = 0;
  fathom_error *err = NULL;
  CHECK_OK(fathom_call(w.e, w.r, w.q, FATHOM_PROTOCOL_RESPONSES, json, strlen(json), &o, &id, &err), err);
  for (;;) {
    const fathom_event *ev;
    size_t n;
    CHECK_OK(fathom_queue_poll(w.q, w.b, -1, &ev, &n, &err), err);
    for (size_t i = 0; i < n; i++) {
      CHECK(ev[i].request == id && ev[i].kind != FATHOM_EVENT_TOKENS);
      if (ev[i].kind == FATHOM_EVENT_DATA) {
        add(&called, &ev[i]);
        continue;
      }
      called.finish = ev[i].finish;
      if (ev[i].error != NULL) {
        called.status = fathom_error_status(ev[i].error);
        snprintf(called.param, sizeof called.param, "%s", fathom_error_param(ev[i].error, NULL));
      }
      return;
    }
  }
}

static void append(const fathom_event *ev, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (ev[i].kind == FATHOM_EVENT_DATA) add(&by_hand, &ev[i]);
}

/* prepare, submit, poll, parse. Gives the complete response, too. */
static fathom_buf *read_by_hand(const char *json) {
  memset(&by_hand, 0, sizeof by_hand);
  fathom_error *err = NULL;
  fathom_prepared *p = NULL;
  const char *options = SEED;
  CHECK_OK(fathom_prepare_with(w.r, FATHOM_PROTOCOL_RESPONSES, json, strlen(json), options, strlen(options), &p, &err),
           err);
  fathom_parser *s = NULL;
  CHECK_OK(fathom_parser_new(p, &s, &err), err);
  fathom_request_id id;
  CHECK_OK(fathom_submit(w.e, w.q, p, NULL, &id, &err), err);
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
          info.response_id = str("resp_fixed");
          CHECK_OK(fathom_parser_start(s, &info, own, &made, &count, &err), err);
          append(made, count);
        }
        CHECK_OK(fathom_parser_push_tokens(s, ev[i].tokens, ev[i].token_count, own, &made, &count, &err), err);
        append(made, count);
        continue;
      }
      CHECK_OK(fathom_parser_finish(s, ev[i].finish, ev[i].usage, own, &made, &count, &err), err);
      append(made, count);
      done = 1;
    }
  }
  fathom_buf *response = NULL;
  CHECK_OK(fathom_parser_response(s, &response, &err), err);
  fathom_parser_free(s);
  fathom_prepared_free(p);
  fathom_batch_free(own);
  return response;
}

static void contains(const char *text, const char *piece) {
  if (strstr(text, piece) == NULL) {
    fprintf(stderr, "no %s in %s\n", piece, text);
    exit(1);
  }
}

/* Hides what may differ from run to run: how long it took, and what a cache held. */
static void hide(char *text) {
  const char *names[] = {"\"completed_at\":", "\"cached_tokens\":"};
  for (int k = 0; k < 2; k++)
    for (char *at = text; (at = strstr(at, names[k])) != NULL;)
      for (at += strlen(names[k]); *at >= '0' && *at <= '9'; at++) *at = '0';
}

/* Spans fall where they fall: deltas of one item become one. Their numbers go, those of others follow. */
static void join(answer *a) {
  static char joined[sizeof a->text];
  size_t len = 0, from = 0;
  char last[256] = "";
  unsigned long number = 0;
  for (char *line = strtok(a->text, "\n"); line != NULL; line = strtok(NULL, "\n")) {
    char tail[64];
    snprintf(tail, sizeof tail, ",\"sequence_number\":%lu}", number++);
    size_t size = strlen(line), cut = strlen(tail);
    CHECK(size > cut && strcmp(line + size - cut, tail) == 0);
    line[size - cut] = '\0';
    char *delta = strstr(line, "\"delta\":\"");
    from = 0;
    if (strstr(line, ".delta\"") != NULL) {
      CHECK(delta != NULL && (size_t)(delta - line) < sizeof last);
      from = (size_t)(delta - line) + strlen("\"delta\":\"");
      line[size - cut - 1] = '\0';
      if (strncmp(line, last, from) != 0 || strlen(last) != from) {
        snprintf(last, sizeof last, "%.*s", (int)from, line);
        from = 0;
        joined[len++] = '\n';
      }
    } else {
      last[0] = '\0';
      joined[len++] = '\n';
    }
    CHECK(len + size < sizeof joined);
    len += (size_t)sprintf(joined + len, "%s", line + from);
  }
  joined[len] = '\0';
  memcpy(a->text, joined, len + 1);
  hide(a->text);
}

/* Asks both ways; the events are the same, and so is the complete response. */
static void ask(const char *json, int32_t finish) {
  call(json);
  CHECK_STATUS(called.status, FATHOM_OK);
  CHECK(called.finish == finish && called.events > 5);
  fathom_buf *response = read_by_hand(json);
  join(&called);
  join(&by_hand);
  if (strcmp(called.text, by_hand.text) != 0) {
    fprintf(stderr, "called:%s\nby hand:%s\n", called.text, by_hand.text);
    exit(1);
  }
  contains(called.text, "{\"type\":\"response.created\",\"response\":{\"id\":\"resp_fixed\",\"object\":\"response\","
                        "\"created_at\":1,\"status\":\"in_progress\"");

  /* Whole, whatever the request says of streams: the response of the last event. */
  fathom_call_options o;
  fathom_call_options_init(&o, sizeof o);
  o.response_id = str("resp_fixed");
  o.created_unix_s = 1;
  o.options_json = str(SEED);
  fathom_buf *whole = NULL;
  fathom_error *err = NULL;
  CHECK_OK(fathom_call_blocking(w.e, w.r, FATHOM_PROTOCOL_RESPONSES, json, strlen(json), &o, &whole, &err), err);
  char *texts[2];
  fathom_buf *both[2] = {response, whole};
  for (int k = 0; k < 2; k++) {
    size_t len;
    const uint8_t *bytes = fathom_buf_data(both[k], &len);
    texts[k] = malloc(len + 1);
    CHECK(texts[k] != NULL);
    memcpy(texts[k], bytes, len + 1);
    hide(texts[k]);
    contains(called.text, texts[k]);
    fathom_buf_free(both[k]);
  }
  CHECK(strcmp(texts[0], texts[1]) == 0);
  free(texts[0]);
  free(texts[1]);
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  w = open_world(argv[1]);

  ask(STORY, FATHOM_FINISH_STOP);
  contains(called.text, "\"delta\":\"Once upon a time");
  contains(called.text, "\"type\":\"response.completed\"");
  contains(called.text, "\"id\":\"msg_resp_fixed_0\",\"status\":\"completed\"");

  ask(CUT, FATHOM_FINISH_LENGTH);
  contains(called.text, "\"type\":\"response.incomplete\"");
  contains(called.text, "\"incomplete_details\":{\"reason\":\"max_output_tokens\"}");
  contains(called.text, "\"max_output_tokens\":12");
  contains(called.text, "\"id\":\"msg_resp_fixed_0\",\"status\":\"incomplete\"");
  contains(called.text, "\"output_tokens\":12,");

  ask(SUM, FATHOM_FINISH_STOP);
  contains(called.text, "\"type\":\"response.reasoning_text.done\"");
  contains(called.text, "\"encrypted_content\":\"resp_fixed-0\"");
  contains(called.text, "86 - 52 = 34");
  CHECK(strstr(called.text, "\"reasoning_tokens\":0") == NULL);

  ask(WEATHER, FATHOM_FINISH_TOOL_CALLS);
  contains(called.text, "\"type\":\"function_call\",\"id\":\"fc_resp_fixed_0\"");
  contains(called.text, "\"name\":\"get_weather\"");
  contains(called.text, "{\\\"city\\\": \\\"Paris\\\"");

  /* The object alone, which ends with its last brace. */
  ask(PERSON, FATHOM_FINISH_STOP);
  contains(called.text, "\"text\":\"{\\\"animal\\\": ");
  contains(called.text, "\\\"owner\\\": \\\"Anna\\\"}\"}");

  close_world(w);
  return 0;
}
