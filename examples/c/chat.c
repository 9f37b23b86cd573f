/* Asks a model one question and prints the answer as it is made.
 *
 *     chat [--think] MODEL_DIR [PROMPT]
 *
 * The whole path of a host program: open an engine and a recipe, hand in a Chat Completions request, poll its
 * events, look at usage and errors at the end. Built against an installed fathom:
 *
 *     cc chat.c $(pkg-config --cflags --libs fathom) -o chat
 *
 * The answer goes to stdout, everything else to stderr.
 */
#include <fathom.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_PROMPT "Tell me a story about a fox named Lily."

/* A string that grows; ends in NUL once something was appended. */
typedef struct text {
  char *bytes;
  size_t len, cap;
} text;

static void append(text *t, const char *bytes, size_t len) {
  if (t->len + len + 1 > t->cap) {
    size_t cap = (t->len + len + 1) * 2;
    char *grown = realloc(t->bytes, cap);
    if (grown == NULL) {
      fputs("chat: out of memory\n", stderr);
      exit(1);
    }
    t->bytes = grown;
    t->cap = cap;
  }
  memcpy(t->bytes + t->len, bytes, len);
  t->len += len;
  t->bytes[t->len] = '\0';
}

static void append_str(text *t, const char *s) { append(t, s, strlen(s)); }

/* Appends `s` as a JSON string. UTF-8 passes as it is. */
static void append_json_string(text *t, const char *s) {
  append_str(t, "\"");
  for (; *s != '\0'; s++) {
    unsigned char c = (unsigned char)*s;
    if (c == '"' || c == '\\') {
      char escaped[2] = {'\\', (char)c};
      append(t, escaped, 2);
    } else if (c < 0x20) {
      char escaped[8];
      append(t, escaped, (size_t)snprintf(escaped, sizeof escaped, "\\u%04x", c));
    } else {
      append(t, s, 1);
    }
  }
  append_str(t, "\"");
}

/* A place in a JSON document. The library's events are valid JSON; still, nothing here reads past `end`. */
typedef struct cursor {
  const char *at, *end;
} cursor;

static void skip_space(cursor *c) {
  while (c->at < c->end && strchr(" \t\r\n", *c->at) != NULL && *c->at != '\0') c->at++;
}

static bool accept(cursor *c, char wanted) {
  skip_space(c);
  if (c->at >= c->end || *c->at != wanted) return false;
  c->at++;
  return true;
}

static bool read_hex4(cursor *c, uint32_t *out) {
  if (c->end - c->at < 4) return false;
  *out = 0;
  for (int i = 0; i < 4; i++) {
    char h = *c->at++;
    uint32_t digit;
    if (h >= '0' && h <= '9') digit = (uint32_t)(h - '0');
    else if (h >= 'a' && h <= 'f') digit = (uint32_t)(h - 'a') + 10;
    else if (h >= 'A' && h <= 'F') digit = (uint32_t)(h - 'A') + 10;
    else return false;
    *out = *out * 16 + digit;
  }
  return true;
}

static void append_utf8(text *t, uint32_t code) {
  char u[4];
  if (code < 0x80) {
    u[0] = (char)code;
    append(t, u, 1);
  } else if (code < 0x800) {
    u[0] = (char)(0xC0 | code >> 6);
    u[1] = (char)(0x80 | (code & 0x3F));
    append(t, u, 2);
  } else if (code < 0x10000) {
    u[0] = (char)(0xE0 | code >> 12);
    u[1] = (char)(0x80 | (code >> 6 & 0x3F));
    u[2] = (char)(0x80 | (code & 0x3F));
    append(t, u, 3);
  } else {
    u[0] = (char)(0xF0 | code >> 18);
    u[1] = (char)(0x80 | (code >> 12 & 0x3F));
    u[2] = (char)(0x80 | (code >> 6 & 0x3F));
    u[3] = (char)(0x80 | (code & 0x3F));
    append(t, u, 4);
  }
}

/* The four digits after "\u", and the second half of a surrogate pair. A half alone becomes U+FFFD. */
static bool read_unicode_escape(cursor *c, text *out) {
  uint32_t code;
  if (!read_hex4(c, &code)) return false;
  if (code >= 0xD800 && code < 0xDC00) {
    cursor ahead = *c;
    uint32_t low;
    bool pair = c->end - c->at >= 2 && c->at[0] == '\\' && c->at[1] == 'u';
    ahead.at += pair ? 2 : 0;
    if (pair && read_hex4(&ahead, &low) && low >= 0xDC00 && low < 0xE000) {
      *c = ahead;
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
  }
  append_utf8(out, code >= 0xD800 && code < 0xE000 ? 0xFFFD : code);
  return true;
}

/* Reads a string and appends its text to `out`, which may be NULL to skip it. */
static bool read_string(cursor *c, text *out) {
  static const char escapes[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
  text ignored = {0};
  text *to = out != NULL ? out : &ignored;
  bool closed = false;
  if (!accept(c, '"')) return false;
  while (c->at < c->end) {
    char byte = *c->at++;
    if (byte == '"') {
      closed = true;
      break;
    }
    if (byte != '\\') {
      append(to, &byte, 1);
      continue;
    }
    if (c->at >= c->end) break;
    char kind = *c->at++;
    const char *known = kind != '\0' ? strchr(escapes, kind) : NULL;
    if (known != NULL) append(to, &meanings[known - escapes], 1);
    else if (kind != 'u' || !read_unicode_escape(c, to)) break;
  }
  free(ignored.bytes);
  return closed;
}

/* Skips one value of any kind. Brackets inside strings do not count. */
static bool skip_value(cursor *c) {
  int depth = 0;
  skip_space(c);
  do {
    if (c->at >= c->end) return false;
    char byte = *c->at;
    if (byte == '"') {
      if (!read_string(c, NULL)) return false;
    } else if (byte == '{' || byte == '[') {
      depth++, c->at++;
    } else if (byte == '}' || byte == ']') {
      depth--, c->at++;
    } else if (depth > 0) {
      c->at++;
    } else { /* a number, true, false, null */
      const char *start = c->at;
      while (c->at < c->end && strchr(",]} \t\r\n", *c->at) == NULL) c->at++;
      if (c->at == start) return false;
    }
  } while (depth > 0);
  return depth == 0;
}

/* Goes to the value of `key` in the object under the cursor. */
static bool enter_key(cursor *c, const char *key) {
  if (!accept(c, '{')) return false;
  do {
    text name = {0};
    bool read = read_string(c, &name) && accept(c, ':');
    bool found = read && name.bytes != NULL && strcmp(name.bytes, key) == 0;
    free(name.bytes);
    if (found) return true;
    if (!read || !skip_value(c)) return false;
  } while (accept(c, ','));
  return false;
}

/* Appends `model_type` of the checkpoint; says which prompt encoding it was trained with. */
static bool read_model_type(const char *model_dir, text *out) {
  text path = {0}, json = {0};
  char block[4096];
  size_t got;
  append_str(&path, model_dir);
  append_str(&path, "/config.json");
  FILE *file = fopen(path.bytes, "rb");
  free(path.bytes);
  if (file == NULL) return false;
  while ((got = fread(block, 1, sizeof block, file)) > 0) append(&json, block, got);
  fclose(file);
  cursor c = {json.bytes, json.bytes + json.len};
  bool found = json.len > 0 && enter_key(&c, "model_type") && read_string(&c, out);
  free(json.bytes);
  return found;
}

/* Appends `choices[0].delta.<key>` of an event, when it is there and a string. */
static void append_delta(text *out, fathom_str event, const char *key) {
  cursor c = {event.ptr, event.ptr + event.len};
  if (enter_key(&c, "choices") && accept(&c, '[') && enter_key(&c, "delta") && enter_key(&c, key)) read_string(&c, out);
}

static fathom_str str(const char *s) {
  fathom_str out = {s, strlen(s)};
  return out;
}

static int fail(const char *what, fathom_status status, const fathom_error *error) {
  size_t len;
  const char *message = error != NULL ? fathom_error_message(error, &len) : "no details";
  fprintf(stderr, "chat: %s: %s (%s)\n", what, message, fathom_status_name(status));
  return 1;
}

static int32_t show_progress(void *user_data, float fraction, const char *phase, size_t phase_len) {
  (void)user_data;
  if (isatty(STDERR_FILENO)) fprintf(stderr, "\r\033[Kloading %3.0f %% %.*s", (double)fraction * 100, (int)phase_len, phase);
  return 0; /* nonzero would abort */
}

static fathom_status open_engine(const char *model_dir, fathom_engine **engine, fathom_error **error) {
  fathom_engine_options options;
  fathom_engine_options_init(&options, sizeof options);
  options.model_path = str(model_dir);
  options.progress = show_progress;
  fathom_status status = fathom_engine_open(&options, engine, error);
  if (isatty(STDERR_FILENO)) fputs("\r\033[K", stderr);
  return status;
}

static fathom_status open_recipe(const char *model_dir, fathom_recipe **recipe, fathom_error **error) {
  fathom_recipe_options options;
  fathom_recipe_options_init(&options, sizeof options);
  options.tokenizer_path = str(model_dir);
  return fathom_recipe_open(&options, recipe, error);
}

/* The names that a recipe knows without aliases: one for each prompt encoding. */
static const char *model_name(const char *model_dir) {
  text type = {0};
  bool v4 = read_model_type(model_dir, &type) && type.len > 0 && strcmp(type.bytes, "deepseek_v4") == 0;
  free(type.bytes);
  return v4 ? "DeepSeek-V4-Pro" : "DeepSeek-V4.1-Flash";
}

static text chat_request(const char *model, const char *prompt, bool think) {
  text json = {0};
  append_str(&json, "{\"model\": ");
  append_json_string(&json, model);
  append_str(&json, ", \"stream\": true, \"thinking\": {\"type\": ");
  append_json_string(&json, think ? "enabled" : "disabled");
  append_str(&json, "}, \"messages\": [{\"role\": \"user\", \"content\": ");
  append_json_string(&json, prompt);
  append_str(&json, "}]}");
  return json;
}

static void set_dim(bool on) {
  if (isatty(STDOUT_FILENO)) fputs(on ? "\033[2m" : "\033[0m", stdout);
}

/* Prints reasoning dim and content plain; `thinking` remembers which of them came last. */
static void show_event(fathom_str event, bool *thinking) {
  text reasoning = {0}, content = {0};
  append_delta(&reasoning, event, "reasoning_content");
  append_delta(&content, event, "content");
  if (reasoning.len > 0) {
    if (!*thinking) set_dim(true);
    *thinking = true;
    fwrite(reasoning.bytes, 1, reasoning.len, stdout);
  }
  if (content.len > 0) {
    if (*thinking) set_dim(false), fputs("\n", stdout);
    *thinking = false;
    fwrite(content.bytes, 1, content.len, stdout);
  }
  fflush(stdout);
  free(reasoning.bytes);
  free(content.bytes);
}

static int show_end(const fathom_event *done) {
  if (done->finish == FATHOM_FINISH_ERROR || done->finish == FATHOM_FINISH_CANCELLED)
    return fail("the request ended early", fathom_error_status(done->error), done->error);
  const fathom_usage *u = done->usage;
  /* The first token comes out of the prefill, so decoding made one token less. */
  double seconds = (double)u->decode_us / 1e6;
  double speed = seconds > 0 && u->completion_tokens > 1 ? (u->completion_tokens - 1) / seconds : 0;
  fprintf(stderr, "\n%u prompt tokens, %u completion tokens (%u of reasoning), %.1f tokens/s\n", (unsigned)u->prompt_tokens,
          (unsigned)u->completion_tokens, (unsigned)u->reasoning_tokens, speed);
  fprintf(stderr, "queued %.1f ms, prefill %.1f ms, decode %.1f ms%s\n", (double)u->queued_us / 1e3, (double)u->prefill_us / 1e3,
          (double)u->decode_us / 1e3, done->finish == FATHOM_FINISH_LENGTH ? "; cut at the token limit" : "");
  return 0;
}

/* Sends the request and prints its events until it is done. */
static int ask(fathom_engine *engine, fathom_recipe *recipe, fathom_queue *queue, fathom_batch *batch, text json) {
  fathom_submit_options submit;
  fathom_submit_options_init(&submit, sizeof submit);
  submit.temperature = 0; /* the likeliest token, each time; left alone, the request's own value counts */
  fathom_call_options options;
  fathom_call_options_init(&options, sizeof options);
  options.submit = &submit;

  fathom_request_id request;
  fathom_error *error = NULL;
  fathom_status status = fathom_call(engine, recipe, queue, FATHOM_PROTOCOL_CHAT_COMPLETIONS, json.bytes, json.len,
                                     &options, &request, &error);
  bool thinking = false;
  while (status == FATHOM_OK) {
    const fathom_event *events;
    size_t count;
    status = fathom_queue_poll(queue, batch, -1, &events, &count, &error);
    for (size_t i = 0; status == FATHOM_OK && i < count; i++) {
      if (events[i].kind == FATHOM_EVENT_DATA) show_event(events[i].data, &thinking);
      if (events[i].kind != FATHOM_EVENT_DONE) continue;
      if (thinking) set_dim(false);
      fputs("\n", stdout);
      fflush(stdout);
      return show_end(&events[i]);
    }
  }
  int code = fail("the request failed", status, error);
  fathom_error_free(error);
  return code;
}

int main(int argc, char **argv) {
  bool think = argc > 1 && strcmp(argv[1], "--think") == 0;
  char **arguments = argv + (think ? 2 : 1);
  int count = argc - (think ? 2 : 1);
  if (count < 1 || count > 2) {
    fputs("usage: chat [--think] MODEL_DIR [PROMPT]\n", stderr);
    return 2;
  }
  const char *model_dir = arguments[0], *prompt = count > 1 ? arguments[1] : DEFAULT_PROMPT;
  if (fathom_abi_version() != FATHOM_ABI_VERSION) {
    fprintf(stderr, "chat: built for ABI %u, the library has %u\n", (unsigned)FATHOM_ABI_VERSION, (unsigned)fathom_abi_version());
    return 1;
  }

  fathom_engine *engine = NULL;
  fathom_recipe *recipe = NULL;
  fathom_queue *queue = NULL;
  fathom_batch *batch = NULL;
  fathom_error *error = NULL;
  fathom_status status = open_engine(model_dir, &engine, &error);
  if (status == FATHOM_OK) status = open_recipe(model_dir, &recipe, &error);
  if (status == FATHOM_OK) status = fathom_queue_new(NULL, &queue, &error);
  if (status == FATHOM_OK) status = fathom_batch_new(sizeof(fathom_event), &batch);
  text request = chat_request(model_name(model_dir), prompt, think);
  int code = status == FATHOM_OK ? ask(engine, recipe, queue, batch, request) : fail("cannot start", status, error);

  /* Every `_free` takes NULL, and any order is right. */
  free(request.bytes);
  fathom_error_free(error);
  fathom_batch_free(batch);
  fathom_queue_free(queue);
  fathom_recipe_free(recipe);
  fathom_engine_free(engine);
  return code;
}
