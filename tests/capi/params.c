/* params_json: what each key does, and what is refused. */
#define NEEDS_MODEL
#include "check.h"

#define BAD FATHOM_ERR_INVALID_ARGUMENT

static world w;
static fathom_tokenizer *t;
static const uint32_t prompt[] = {0, 4036, 852, 434, 261, 405, 445, 261, 1494, 428, 1341, 16, 4037, 4055};
#define PROMPT prompt, sizeof prompt / sizeof *prompt

/* What came of one request. */
typedef struct outcome {
  uint32_t tokens[64];
  float logprobs[64];
  size_t count, spans, largest;
  int32_t finish;
  uint32_t completion;
  char detail[8192];
} outcome;

static outcome run(const char *params, uint32_t max_tokens, uint32_t logprobs) {
  fathom_submit_options o;
  fathom_submit_options_init(&o, sizeof o);
  o.temperature = 0.0f;
  o.max_tokens = max_tokens;
  o.logprobs = logprobs;
  o.params_json = str(params);
  fathom_request_id id = 0;
  fathom_error *err = NULL;
  CHECK_OK(fathom_submit_tokens(w.e, w.q, PROMPT, &o, &id, &err), err);
  outcome out;
  memset(&out, 0, sizeof out);
  for (;;) {
    const fathom_event *ev;
    size_t n;
    CHECK_OK(fathom_queue_poll(w.q, w.b, -1, &ev, &n, &err), err);
    for (size_t i = 0; i < n; i++) {
      CHECK(ev[i].request == id);
      if (ev[i].kind == FATHOM_EVENT_TOKENS) {
        CHECK(out.count + ev[i].token_count <= 64);
        memcpy(out.tokens + out.count, ev[i].tokens, ev[i].token_count * sizeof(uint32_t));
        if (ev[i].logprobs != NULL)
          memcpy(out.logprobs + out.count, ev[i].logprobs, ev[i].token_count * sizeof(float));
        out.count += ev[i].token_count;
        out.spans++;
        if (ev[i].token_count > out.largest) out.largest = ev[i].token_count;
        continue;
      }
      CHECK(ev[i].kind == FATHOM_EVENT_DONE);
      CHECK(ev[i].detail.len < sizeof out.detail);
      out.finish = ev[i].finish;
      out.completion = ev[i].usage->completion_tokens;
      snprintf(out.detail, sizeof out.detail, "%.*s", (int)ev[i].detail.len, ev[i].detail.ptr);
      return out;
    }
  }
}

static int told(const outcome *o, const char *piece) {
  if (strstr(o->detail, piece) != NULL) return 1;
  fprintf(stderr, "no %s in %s\n", piece, o->detail);
  return 0;
}

/* Sampling: ids that may come, that may not, and that must. */
static void choices(void) {
  outcome plain = run("{\"ignore_eos\":true}", 8, 0);
  CHECK(plain.count == 8);
  char params[512];

  snprintf(params, sizeof params, "{\"ignore_eos\":true,\"bad_words\":[[%u]]}", plain.tokens[0]);
  outcome other = run(params, 8, 0);
  for (size_t i = 0; i < other.count; i++) CHECK(other.tokens[i] != plain.tokens[0]);

  outcome biased = run("{\"logit_bias\":{\"77\":100}}", 5, 0);
  CHECK(biased.count == 5 && biased.tokens[0] == 77 && biased.tokens[4] == 77);
  outcome varied = run("{\"logit_bias\":{\"77\":100,\"78\":99},\"presence_penalty\":2,\"frequency_penalty\":0.5}", 4, 0);
  CHECK(varied.tokens[0] == 77 && varied.tokens[1] == 78);

  outcome looping = run("{\"allowed_tokens\":[90],\"repeat_guard\":{\"pattern\":2,\"count\":4}}", 30, 0);
  CHECK(looping.count == 4 && looping.finish == FATHOM_FINISH_LENGTH && told(&looping, "\"reason\":\"repeat\""));

  snprintf(params, sizeof params, "{\"ignore_eos\":true,\"golden_tokens\":[90,null,91]}");
  outcome golden = run(params, 4, 1);
  CHECK(golden.count == 4 && golden.tokens[0] == 90 && golden.tokens[2] == 91);

  outcome thought = run("{\"ignore_eos\":true,\"think\":{\"budget\":2,\"end\":[92,93]}}", 5, 0);
  CHECK(thought.tokens[0] == plain.tokens[0] && thought.tokens[2] == 92 && thought.tokens[3] == 93);

  /* A stop token that would come first comes third. */
  fathom_submit_options o;
  fathom_submit_options_init(&o, sizeof o);
  const uint32_t stop = 77;
  o.temperature = 0.0f;
  o.max_tokens = 10;
  o.stop_tokens = &stop;
  o.stop_token_count = 1;
  o.params_json = str("{\"logit_bias\":{\"77\":100},\"min_tokens\":2}");
  fathom_request_id id = 0;
  fathom_error *err = NULL;
  CHECK_OK(fathom_submit_tokens(w.e, w.q, PROMPT, &o, &id, &err), err);
  size_t count = 0;
  uint32_t last = 0;
  for (int done = 0; !done;) {
    const fathom_event *ev;
    size_t n;
    CHECK_OK(fathom_queue_poll(w.q, w.b, -1, &ev, &n, &err), err);
    for (size_t i = 0; i < n; i++) {
      done |= ev[i].kind == FATHOM_EVENT_DONE;
      count += ev[i].kind == FATHOM_EVENT_TOKENS ? ev[i].token_count : 0;
      if (ev[i].kind == FATHOM_EVENT_TOKENS && ev[i].token_count > 0) last = ev[i].tokens[ev[i].token_count - 1];
    }
  }
  CHECK(count == 3 && last == 77);
}

/* Reports: at the end, where they are asked for and nowhere else. */
static void reports(void) {
  outcome quiet = run("{}", 3, 0);
  CHECK(strstr(quiet.detail, "logprob") == NULL && strstr(quiet.detail, "digest") == NULL);
  outcome loud = run("{\"ignore_eos\":true,\"tail_mass\":true,\"digest\":true,\"logprob_tokens\":[5,6],"
                     "\"prompt_logprobs\":{\"top\":2,\"start\":3},\"logprob_source\":\"raw\"}", 3, 2);
  CHECK(told(&loud, "\"tail_mass\":[") && told(&loud, "\"digest\":\"") && told(&loud, "\"token_logprobs\":[["));
  CHECK(told(&loud, "\"ranks\":[1,1,1]") && told(&loud, "\"cumulative_logprob\":-"));
  CHECK(told(&loud, "\"prompt_logprobs\":{\"start\":3,\"logprobs\":[") && told(&loud, "\"top_tokens\":[["));
  CHECK(loud.logprobs[0] < 0.0f);
  /* Greedy, one id left: the processed distribution is certain of it. */
  outcome sure = run("{\"ignore_eos\":true,\"top_k\":1,\"logprob_source\":\"processed\",\"logprob_tokens\":[5]}", 2, 3);
  CHECK(sure.logprobs[0] == 0.0f && told(&sure, "\"token_logprobs\":[[null],[null]]"));
  outcome filled = run("{\"prefill_only\":true,\"prompt_logprobs\":{}}", 0, 0);
  CHECK(filled.count == 0 && filled.finish == FATHOM_FINISH_LENGTH);
  CHECK(told(&filled, "\"prompt_logprobs\":{\"start\":1,") && strstr(filled.detail, "top_tokens") == NULL);
}

/* Stop strings: the text of the tokens delivered and the tail are the output. */
static void stops(void) {
  fathom_error *err = NULL;
  const char *text = "one two threefour five";
  uint32_t ids[64];
  size_t count = 0;
  CHECK_OK(fathom_tokenizer_encode(t, text, strlen(text), 0, ids, 64, &count, &err), err);
  CHECK(count > 2 && count <= 64);
  char golden[1024] = "";
  for (size_t i = 0; i < count; i++)
    snprintf(golden + strlen(golden), sizeof golden - strlen(golden), "%s%u", i == 0 ? "" : ",", ids[i]);
  static const char *expected[] = {"one two thr", "one two threefo"};
  for (int include = 0; include < 2; include++) {
    char params[2048];
    snprintf(params, sizeof params, "{\"golden_tokens\":[%s],\"stop_strings\":[\"five\",\"eefo\"]%s}", golden,
             include ? ",\"include_stop\":true" : "");
    outcome o = run(params, 60, 1);
    CHECK(o.finish == FATHOM_FINISH_STOP && told(&o, "\"reason\":\"stop\"") && told(&o, "\"stop\":\"eefo\""));
    CHECK(o.count <= o.completion && o.completion <= count);
    fathom_buf *b = NULL;
    CHECK_OK(fathom_tokenizer_decode(t, o.tokens, o.count, 0, &b, &err), err);
    size_t len = 0;
    const char *bytes = (const char *)fathom_buf_data(b, &len);
    char shown[256];
    snprintf(shown, sizeof shown, "%.*s", (int)len, bytes);
    fathom_buf_free(b);
    const char *tail = strstr(o.detail, "\"tail\":\"");
    if (tail != NULL) {
      tail += 8;
      snprintf(shown + strlen(shown), sizeof shown - strlen(shown), "%.*s", (int)(strchr(tail, '"') - tail), tail);
    }
    CHECK(strcmp(shown, expected[include]) == 0);
  }
  /* What is held back comes in the end. */
  outcome held = run("{\"golden_tokens\":[90,90,90],\"stop_strings\":[\"never seen\"],\"stream_interval\":100}", 3, 0);
  CHECK(held.count == 3);
}

/* What a prepared request says is kept where its recipe keeps it, and a reasoning's end is its model's. */
static void prepared(const char *model) {
  fathom_error *err = NULL;
  fathom_recipe *r = open_recipe(model, "{\"engine_params\":true}");
  static const char *json[] = {
      CHAT("hi") ",\"logit_bias\":{\"77\":100,\"78\":99},\"presence_penalty\":2,\"temperature\":0,\"max_tokens\":2}",
      "{\"model\":\"DeepSeek-V4.1-Flash\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],"
      "\"thinking\":{\"type\":\"enabled\"},\"logit_bias\":{\"77\":100},\"max_tokens\":3}",
  };
  uint32_t end = 0;
  CHECK_STATUS(fathom_tokenizer_token_id(t, "</think>", 8, &end), FATHOM_OK);
  const uint32_t expected[2][3] = {{77, 78, 0}, {77, 77, end}};
  for (int at = 0; at < 2; at++) {
    fathom_prepared *p = NULL;
    CHECK_OK(fathom_prepare(r, FATHOM_PROTOCOL_CHAT_COMPLETIONS, json[at], strlen(json[at]), &p, &err), err);
    fathom_submit_options o;
    fathom_submit_options_init(&o, sizeof o);
    o.params_json = str("{\"think\":{\"budget\":2},\"ignore_eos\":true}");
    fathom_request_id id = 0;
    CHECK_OK(fathom_submit(w.e, w.q, p, &o, &id, &err), err);
    size_t count = 0;
    for (int done = 0; !done;) {
      const fathom_event *ev;
      size_t n;
      CHECK_OK(fathom_queue_poll(w.q, w.b, -1, &ev, &n, &err), err);
      for (size_t i = 0; i < n; i++) {
        done |= ev[i].kind == FATHOM_EVENT_DONE;
        for (size_t k = 0; ev[i].kind == FATHOM_EVENT_TOKENS && k < ev[i].token_count; k++, count++)
          CHECK(count < 3 && ev[i].tokens[k] == expected[at][count]);
      }
    }
    CHECK(count == (at == 0 ? 2u : 3u));
    fathom_prepared_free(p);
  }
  fathom_recipe_free(r);
}

static void refused(void) {
  static const char *cases[][2] = {
      {"{\"presence_penalty\":2.5}", "presence_penalty"},
      {"{\"frequency_penalty\":-3}", "frequency_penalty"},
      {"{\"repetition_penalty\":0}", "repetition_penalty"},
      {"{\"repetition_penalty\":11}", "repetition_penalty"},
      {"{\"logit_bias\":{\"5\":101}}", "logit_bias"},
      {"{\"logit_bias\":{\"4000000000\":1}}", "logit_bias"},
      {"{\"logit_bias\":{\"5\":1,\"05\":1}}", "logit_bias"},
      {"{\"allowed_tokens\":[]}", "allowed_tokens"},
      {"{\"allowed_tokens\":[4000000000]}", "allowed_tokens"},
      {"{\"bad_words\":[[]]}", "bad_words"},
      {"{\"min_tokens\":13}", "min_tokens"},
      {"{\"golden_tokens\":[4000000000]}", "golden_tokens"},
      {"{\"choice_base\":64}", "choice_base"},
      {"{\"think\":{\"budget\":3}}", "think"},
      {"{\"think\":{\"budget\":3,\"end\":[]}}", "think"},
      {"{\"tail_mass\":true}", "tail_mass"},
      {"{\"prompt_logprobs\":{\"top\":65}}", "prompt_logprobs"},
      {"{\"prompt_logprobs\":{\"start\":14}}", "prompt_logprobs"},
      {"{\"stop_strings\":[\"\"]}", "stop_strings"},
      {"{\"include_stop\":true}", "include_stop"},
      {"{\"repeat_guard\":{\"pattern\":65,\"count\":3}}", "repeat_guard"},
      {"{\"repeat_guard\":{\"pattern\":4,\"count\":1}}", "repeat_guard"},
      {"{\"stream_interval\":0}", "stream_interval"},
      {"{\"logprob_source\":\"cooked\"}", "logprob_source"},
      {"{\"n\":true}", "n"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    fathom_submit_options o;
    fathom_submit_options_init(&o, sizeof o);
    o.max_tokens = 12;
    o.params_json = str(cases[i][0]);
    fathom_request_id id = 9;
    const char *name = cases[i][1];
    fathom_status wanted = strcmp(name, "n") == 0 ? FATHOM_ERR_UNSUPPORTED : BAD;
    CHECK_PARAM(fathom_submit_tokens(w.e, w.q, PROMPT, &o, &id, &err), wanted, name);
    CHECK(id == 0);
  }
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  w = open_world(argv[1]);
  fathom_error *err = NULL;
  CHECK_OK(fathom_tokenizer_open(argv[1], strlen(argv[1]), &t, &err), err);
  choices();
  reports();
  stops();
  prepared(argv[1]);
  refused();
  fathom_tokenizer_free(t);
  close_world(w);
  return 0;
}
