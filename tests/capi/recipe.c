/* Recipes, prepared requests, images, tokenizers and constraints. */
#define NEEDS_MODEL
#include "check.h"

#define BAD FATHOM_ERR_INVALID_ARGUMENT

static const char *model;
static fathom_recipe *r;

static fathom_status prepare(const char *json, fathom_prepared **p, fathom_error **err) {
  return fathom_prepare(r, FATHOM_PROTOCOL_CHAT_COMPLETIONS, json, strlen(json), p, err);
}

static void good(void) {
  fathom_prepared *p = NULL;
  fathom_error *err = NULL;
  CHECK_OK(prepare(CHAT("Tell me a story about a fox named Lily.") ",\"max_tokens\":50,\"top_p\":0.5}", &p, &err), err);
  fathom_prepared_info info = {.struct_size = sizeof info};
  CHECK_STATUS(fathom_prepared_info_get(p, &info), FATHOM_OK);
  CHECK(strcmp(info.model, "DeepSeek-V4.1-Flash") == 0);
  CHECK(info.protocol == FATHOM_PROTOCOL_CHAT_COMPLETIONS && info.stream == 0 && info.max_tokens == 50);
  CHECK(info.image_count == 0 && info.pending_images == 0 && info.constraint_kind == 0);
  const uint32_t *tokens;
  const char *text;
  const fathom_range *ranges;
  size_t count, len, range_count;
  CHECK_STATUS(fathom_prepared_tokens(p, &tokens, &count), FATHOM_OK);
  /* The golden prompt of the demo model. */
  const uint32_t golden[] = {0, 4036, 852, 434, 261, 405, 445, 261, 1494, 428, 1341, 16, 4037, 4055};
  CHECK(count == sizeof golden / sizeof *golden && memcmp(tokens, golden, sizeof golden) == 0);
  CHECK(info.token_count == count);
  CHECK_STATUS(fathom_prepared_prompt(p, &text, &len), FATHOM_OK);
  CHECK(text[len] == '\0' && has(text, len, "fox named Lily"));
  CHECK_STATUS(fathom_prepared_special_ranges(p, &ranges, &range_count), FATHOM_OK);
  CHECK(range_count > 1 && ranges[0].start == 0 && ranges[0].end > 0 && ranges[range_count - 1].end <= len);
  fathom_buf *b = NULL;
  CHECK_OK(fathom_prepared_options_json(p, &b, &err), err);
  size_t json_len = 0;
  const char *json = (const char *)fathom_buf_data(b, &json_len);
  CHECK(has(json, json_len, "\"encoding\":\"v4.1\"") && has(json, json_len, "\"context_limit\":1048576"));
  CHECK(has(json, json_len, "\"role\":\"user\"") && has(json, json_len, "\"recovery\":\"robust\""));
  CHECK(has(json, json_len, "\"parse_tool_calls\":false") && has(json, json_len, "\"warnings\":["));
  fathom_buf_free(b);
  CHECK_STATUS(fathom_prepared_image_pixels(p, 0, FATHOM_PIXELS_RGB8, &b, NULL), FATHOM_ERR_UNSUPPORTED);
  CHECK_STATUS(fathom_prepared_image_pixels(p, 0, 0xFF, &b, NULL), BAD);
  CHECK_STATUS(fathom_prepared_set_image(p, 0, NULL, 3, NULL), BAD);
  CHECK_STATUS(fathom_prepared_set_image(p, 0, (const uint8_t *)"GIF", 3, NULL), FATHOM_ERR_UNSUPPORTED);
  CHECK_STATUS(fathom_prepared_fetch_images(p, NULL, NULL), FATHOM_ERR_UNSUPPORTED);
  fathom_fetch_policy policy = {.struct_size = sizeof policy, .flags = 0xFF};
  CHECK_STATUS(fathom_prepared_fetch_images(p, &policy, NULL), BAD);
  fathom_prepared_free(p);
}

/* A conversation given directly, with an image whose size is known. */
static void conversation(void) {
  fathom_prepared *p = NULL;
  fathom_error *err = NULL;
  const char *json = "{\"encoding\":\"v4.1\",\"messages\":[{\"role\":\"user\",\"content\":\"<\uFF5Cimage\uFF5C>\","
                     "\"image_sources\":[{\"kind\":\"url\",\"url\":\"https://e.test/1.png\"}]}]}";
  const char *options = "{\"image_sizes\":[[1920,1080]]}", *wrong = "{\"image_sizes\":[[1920,0]]}";
  CHECK_OK(fathom_prepare_with(r, FATHOM_PROTOCOL_CONVERSATION, json, strlen(json), options, strlen(options), &p, &err),
           err);
  fathom_prepared_info info = {.struct_size = sizeof info};
  CHECK_STATUS(fathom_prepared_info_get(p, &info), FATHOM_OK);
  CHECK(info.protocol == FATHOM_PROTOCOL_CONVERSATION && strcmp(info.model, "v4.1") == 0);
  const uint32_t *tokens;
  size_t count;
  CHECK_STATUS(fathom_prepared_tokens(p, &tokens, &count), FATHOM_OK);
  CHECK(info.image_count == 1 && info.pending_images == 1 && info.token_count == count + 967);
  fathom_parser *s = NULL;
  CHECK_OK(fathom_parser_new(p, &s, &err), err);
  fathom_parser_free(s);
  fathom_prepared_free(p);
  CHECK_PARAM(fathom_prepare_with(r, FATHOM_PROTOCOL_CONVERSATION, json, strlen(json), wrong, strlen(wrong), &p, &err),
              BAD, "image_sizes[0]");
  json = "{\"encoding\":\"v4.1\",\"mesages\":[]}";
  CHECK_PARAM(fathom_prepare(r, FATHOM_PROTOCOL_CONVERSATION, json, strlen(json), &p, &err), FATHOM_ERR_INVALID_JSON,
              "mesages");
}

static void refused(void) {
  fathom_prepared *p = (void *)1;
  fathom_error *err = NULL;
  CHECK_STATUS(prepare("{", &p, &err), FATHOM_ERR_INVALID_JSON);
  CHECK(p == NULL && fathom_error_http_status(err) == 400);
  fathom_buf *body = NULL;
  CHECK_STATUS(fathom_error_body(err, 1, &body), FATHOM_OK);
  check_buf(body, "\"type\":\"invalid_request_error\"");
  fathom_error_free(err);
  CHECK_STATUS(prepare("{\"model\":\"\xFF\"}", &p, NULL), FATHOM_ERR_INVALID_UTF8);
  CHECK_STATUS(prepare("{\"model\":\"gpt-1\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}", &p, NULL),
               FATHOM_ERR_UNKNOWN_MODEL);
  CHECK_STATUS(prepare(CHAT("x") ",\"temperature\":9}", &p, NULL), FATHOM_ERR_INVALID_REQUEST);
  CHECK_STATUS(fathom_prepare(r, 0xFF, "{}", 2, &p, NULL), BAD);
  CHECK_STATUS(fathom_prepare(r, 1, NULL, 2, &p, NULL), BAD);
  CHECK_STATUS(fathom_prepare(r, 1, NULL, 0, &p, NULL), BAD);
  CHECK_PARAM(fathom_prepare(r, 1, "{}", 2, NULL, &err), BAD, "out");
  const char *options = "{\"no_such_option\":1}", *request = CHAT("x") "}";
  CHECK_PARAM(fathom_prepare_with(r, 1, request, strlen(request), options, strlen(options), &p, &err), BAD,
              "no_such_option");
  /* `error_param` fills the body's param. */
  options = "{\"error_param\":true}";
  request = "{\"model\":\"gpt-1\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}";
  CHECK_STATUS(fathom_prepare_with(r, 1, request, strlen(request), options, strlen(options), &p, &err),
               FATHOM_ERR_UNKNOWN_MODEL);
  CHECK_STATUS(fathom_error_body(err, 1, &body), FATHOM_OK);
  check_buf(body, "\"param\":\"model\"");
  fathom_error_free(err);
}

/* Prepares a faulty Messages request with these options and looks at the body of the error. */
static void check_messages_error(const char *options, const char *expected) {
  const char *request = "{\"model\":\"DeepSeek-V4.1-Flash\",\"messages\":[{\"role\":\"user\",\"content\":[]}]}";
  fathom_prepared *p = NULL;
  fathom_error *err = NULL;
  CHECK_STATUS(fathom_prepare_with(r, FATHOM_PROTOCOL_MESSAGES, request, strlen(request), options, strlen(options), &p,
                                   &err),
               FATHOM_ERR_INVALID_REQUEST);
  CHECK(p == NULL && fathom_error_http_status(err) == 400);
  CHECK(strcmp(fathom_error_param(err, NULL), "messages[0].content") == 0);
  fathom_buf *body = NULL;
  CHECK_STATUS(fathom_error_body(err, FATHOM_PROTOCOL_MESSAGES, &body), FATHOM_OK);
  check_buf(body, expected);
  fathom_error_free(err);
}

static void messages(void) {
#define TEXT "\"message\":\"messages.0: all messages must have non-empty content\""
  check_messages_error("{}", "{\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\"," TEXT "}}");
  check_messages_error("{\"error_param\":true}",
                       "{\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\"," TEXT
                       ",\"param\":\"messages[0].content\"}}");
  check_messages_error("{\"messages_error_shape\":\"openai\"}",
                       "{\"error\":{" TEXT ",\"type\":\"invalid_request_error\",\"param\":null,"
                       "\"code\":\"invalid_request_error\"}}");
  check_messages_error("{\"messages_error_shape\":\"openai\",\"error_param\":true}",
                       "{\"error\":{" TEXT ",\"type\":\"invalid_request_error\","
                       "\"param\":\"messages[0].content\",\"code\":\"invalid_request_error\"}}");
#undef TEXT

  /* The prompt is there like that of any protocol. */
  const char *request = "{\"model\":\"DeepSeek-V4.1-Flash\",\"max_tokens\":7,\"stream\":true,\"thinking\":"
                        "{\"type\":\"disabled\"},\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}";
  fathom_prepared *p = NULL;
  fathom_error *err = NULL;
  CHECK_OK(fathom_prepare(r, FATHOM_PROTOCOL_MESSAGES, request, strlen(request), &p, &err), err);
  fathom_prepared_info info = {.struct_size = sizeof info};
  CHECK_STATUS(fathom_prepared_info_get(p, &info), FATHOM_OK);
  CHECK(info.protocol == FATHOM_PROTOCOL_MESSAGES && info.stream == 1 && info.max_tokens == 7);
  CHECK(info.token_count > 3);
  fathom_prepared_free(p);
}

static void without_tokenizer(void) {
  fathom_recipe *bare = NULL;
  fathom_error *err = NULL;
  CHECK_OK(fathom_recipe_open(NULL, &bare, &err), err);
  fathom_tokenizer *t = NULL;
  CHECK_STATUS(fathom_recipe_tokenizer(bare, &t), FATHOM_ERR_STATE);
  fathom_prepared *p = NULL;
  const char *request = CHAT("Hi") "}";
  CHECK_OK(fathom_prepare(bare, 1, request, strlen(request), &p, &err), err);
  const uint32_t *tokens;
  size_t count = 7;
  CHECK_STATUS(fathom_prepared_tokens(p, &tokens, &count), FATHOM_OK);
  CHECK(count == 0);
  fathom_recipe_free(bare);
  fathom_prepared_free(p);
}

/* Each kind: a text that satisfies it, and one that fails at a byte. */
static void constraints(const fathom_tokenizer *t) {
  static const struct {
    int32_t kind;
    const char *spec, *good, *bad, *at;
  } cases[] = {
      {FATHOM_CONSTRAINT_JSON_OBJECT, NULL, "{\"a\": [1, true]}", "{\"a\": [1, tru]}", "byte 13"},
      {FATHOM_CONSTRAINT_JSON_SCHEMA, "{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}", "[1,2]", "[1,2", "ends at byte 4"},
      {FATHOM_CONSTRAINT_REGEX, "^[a-c]+$", "abc", "abd", "byte 2"},
      {FATHOM_CONSTRAINT_GRAMMAR, "start: \"x\" /[0-9]+/", "x12", "xx", "byte 1"},
      {FATHOM_CONSTRAINT_EBNF, "root ::= \"(\" root? \")\"", "(())", "(()", "ends at byte 3"},
      {FATHOM_CONSTRAINT_CHOICE, "[\"yes\",\"yes!\",\"no\"]", "yes", "maybe", "byte 0"},
      {FATHOM_CONSTRAINT_STRUCTURAL_TAG,
       "{\"structures\":[{\"begin\":\"<a>\",\"schema\":{\"type\":\"integer\"},\"end\":\"</a>\"}],\"triggers\":[\"<a\"]}",
       "say <a>12</a> or <b", "say <a>x", "byte 7"},
  };
  fathom_constraint *c;
  fathom_error *err = NULL;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const char *spec = cases[i].spec;
    CHECK_OK(fathom_constraint_new(t, cases[i].kind, spec, spec ? strlen(spec) : 0, &c, &err), err);
    CHECK_OK(fathom_constraint_check(c, cases[i].good, strlen(cases[i].good), &err), err);
    CHECK_STATUS(fathom_constraint_check(c, cases[i].bad, strlen(cases[i].bad), &err), FATHOM_ERR_CONSTRAINT);
    size_t len;
    CHECK(strstr(fathom_error_message(err, &len), cases[i].at) != NULL);
    fathom_error_free(err);
    err = NULL;
    CHECK_STATUS(fathom_constraint_check(c, "\xFF", 1, NULL), FATHOM_ERR_INVALID_UTF8);
    fathom_constraint_free(c);
  }
  CHECK_PARAM(fathom_constraint_new(t, FATHOM_CONSTRAINT_REGEX, "a(", 2, &c, &err), FATHOM_ERR_CONSTRAINT, "spec");
  CHECK_PARAM(fathom_constraint_new(t, FATHOM_CONSTRAINT_REGEX, NULL, 0, &c, &err), BAD, "spec");
  CHECK_PARAM(fathom_constraint_new(t, FATHOM_CONSTRAINT_JSON_OBJECT, "x", 1, &c, &err), BAD, "spec");
  CHECK_PARAM(fathom_constraint_new(t, FATHOM_CONSTRAINT_JSON_SCHEMA, "[]", 2, &c, &err), FATHOM_ERR_CONSTRAINT, "spec");
  CHECK_PARAM(fathom_constraint_new(t, FATHOM_CONSTRAINT_REGEX, "a", 1, NULL, &err), BAD, "out");
  CHECK(c == NULL);
}

static void tokenizers(void) {
  fathom_tokenizer *t = NULL, *own = NULL;
  fathom_error *err = NULL;
  CHECK_OK(fathom_tokenizer_open(model, strlen(model), &t, &err), err);
  CHECK_STATUS(fathom_recipe_tokenizer(r, &own), FATHOM_OK);
  CHECK(fathom_tokenizer_vocab_size(t) == fathom_tokenizer_vocab_size(own));
  fathom_tokenizer_free(own);
  CHECK_STATUS(fathom_tokenizer_open("/nonexistent", 12, &own, NULL), FATHOM_ERR_BAD_MODEL);
  CHECK_STATUS(fathom_tokenizer_open(NULL, 0, &own, NULL), BAD);

  uint32_t ids[64], one[1] = {77};
  size_t needed = 0, again = 0;
  const char *text = "a fox named Lily</think>";
  CHECK_OK(fathom_tokenizer_encode(t, text, strlen(text), 0, NULL, 0, &needed, &err), err);
  CHECK(needed > 1 && needed <= strlen(text) + 8);
  CHECK_OK(fathom_tokenizer_encode(t, text, strlen(text), 0, one, 1, &again, &err), err);
  CHECK(again == needed && one[0] == 77);
  CHECK_OK(fathom_tokenizer_encode(t, text, strlen(text), 0, ids, 64, &again, &err), err);
  fathom_buf *b = NULL;
  CHECK_OK(fathom_tokenizer_decode(t, ids, needed, 0, &b, &err), err);
  size_t len = 0;
  const char *back = (const char *)fathom_buf_data(b, &len);
  CHECK(len == strlen(text) && memcmp(back, text, len) == 0);
  fathom_buf_free(b);
  CHECK_OK(fathom_tokenizer_encode(t, text, strlen(text), FATHOM_TOKENIZE_ALLOW_SPECIAL, ids, 64, &again, &err), err);
  CHECK(again < needed);
  uint32_t end_of_thinking = 0;
  CHECK_STATUS(fathom_tokenizer_token_id(t, "</think>", 8, &end_of_thinking), FATHOM_OK);
  CHECK(ids[again - 1] == end_of_thinking);
  CHECK_OK(fathom_tokenizer_decode(t, ids, again, 0, &b, &err), err);
  (void)fathom_buf_data(b, &len);
  CHECK(len == strlen(text) - 8);
  fathom_buf_free(b);
  CHECK_OK(fathom_tokenizer_decode(t, ids, again, FATHOM_DETOKENIZE_KEEP_SPECIAL, &b, &err), err);
  (void)fathom_buf_data(b, &len);
  CHECK(len == strlen(text));
  fathom_buf_free(b);
  const uint8_t *bytes;
  CHECK_STATUS(fathom_tokenizer_token_bytes(t, end_of_thinking, &bytes, &len), FATHOM_OK);
  CHECK(len == 8 && memcmp(bytes, "</think>", 8) == 0);
  CHECK_STATUS(fathom_tokenizer_token_bytes(t, UINT32_MAX, &bytes, &len), FATHOM_ERR_NOT_FOUND);
  CHECK(bytes == NULL && len == 0);
  CHECK_STATUS(fathom_tokenizer_token_id(t, "no such token", 13, &end_of_thinking), FATHOM_ERR_NOT_FOUND);
  ids[0] = UINT32_MAX;
  CHECK_PARAM(fathom_tokenizer_decode(t, ids, 1, 0, &b, &err), BAD, "tokens");
  CHECK_PARAM(fathom_tokenizer_decode(t, ids, 1, 0xFF, &b, &err), BAD, "flags");
  CHECK_PARAM(fathom_tokenizer_encode(t, "x", 1, 0xFF, ids, 1, &needed, &err), BAD, "flags");
  CHECK_PARAM(fathom_tokenizer_encode(t, "\xFF", 1, 0, ids, 1, &needed, &err), FATHOM_ERR_INVALID_UTF8, "text");
  CHECK_PARAM(fathom_tokenizer_encode(t, "x", 1, 0, NULL, 1, &needed, &err), BAD, "out");
  CHECK_PARAM(fathom_tokenizer_encode(t, "x", 1, 0, ids, 1, NULL, &err), BAD, "needed");

  fathom_constraint *c = NULL;
  CHECK_PARAM(fathom_constraint_new(t, 0xFF, "a+", 2, &c, &err), BAD, "kind");
  CHECK_PARAM(fathom_constraint_new(t, 0, "a+", 2, &c, &err), BAD, "kind");
  CHECK(c == NULL);
  constraints(t);
  fathom_tokenizer_free(t);
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  model = argv[1];
  r = open_recipe(model, NULL);
  good();
  conversation();
  refused();
  messages();
  without_tokenizer();
  tokenizers();
  fathom_recipe_free(r);
  return 0;
}
