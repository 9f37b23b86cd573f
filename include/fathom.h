/*
 * fathom: runs DeepSeek V4 and V4.1 models inside the caller's process, and turns API requests into prompts
 * and model tokens into protocol events.
 *
 * Rendered from src/capi/ by `cargo test --test header`; do not edit.
 *
 * Threads. `const T *` may be used by any number of threads at once. `fathom_engine *` and `fathom_queue *`, too.
 * A batch, a parser, and a prepared request with pending images are for one thread at a time; a second one gets
 * FATHOM_ERR_STATE. No object belongs to the thread that made it.
 *
 * Ownership. `_new` and `_open` make a handle, `_free` gives it back and takes NULL. Handles may be freed in any
 * order and from any thread. No pointer from this library may go to free(). What a function lends lives as long
 * as the object it came from, unless the function says less.
 *
 * Outputs are written on FATHOM_OK only; `*out` is set to NULL or 0 before anything else, `*err` to NULL.
 * `err` may be NULL; an error that it received is freed with fathom_error_free.
 *
 * Inputs are copied before a call returns, unless a function says otherwise. Text is UTF-8, needs no NUL and may
 * contain it. Text that the library returns has one NUL behind its last byte, which its length does not count.
 *
 * Structs that start with struct_size grow at their end only. Set one up with its _init, or zero it and set
 * struct_size to its sizeof.
 *
 * Every function answers FATHOM_ERR_INVALID_ARGUMENT for NULL, freed and wrong handles, unknown numbers and
 * unknown flags; FATHOM_ERR_ABI for a struct_size that cannot be, and for bytes beyond what it knows;
 * FATHOM_ERR_PANIC for a contained bug, after which a parser or prepared request answers FATHOM_ERR_POISONED.
 *
 * After a fork, engines and queues of the parent answer FATHOM_ERR_FORKED in the child; all else works there.
 */

#ifndef FATHOM_H
#define FATHOM_H

#include <stddef.h>
#include <stdint.h>

#if !defined(FATHOM_API)
#if defined(_WIN32) && !defined(FATHOM_STATIC)
#define FATHOM_API __declspec(dllimport)
#else
#define FATHOM_API
#endif
#endif

#if !defined(FATHOM_NODISCARD)
#if defined(__GNUC__) || defined(__clang__)
#define FATHOM_NODISCARD __attribute__((warn_unused_result))
#else
#define FATHOM_NODISCARD
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Basic types ---- */

/* Counts breaks of this interface; compare with `fathom_abi_version` when loading. */
#define FATHOM_ABI_VERSION 0

/* The memory that events are delivered in. One thread at a time. */
typedef struct fathom_batch fathom_batch;

/* Bytes owned by the caller. Immutable; all threads at once. Free with `fathom_buf_free`, never with `free()`. */
typedef struct fathom_buf fathom_buf;

/* A compiled schema, regex or grammar. Immutable; all threads at once. */
typedef struct fathom_constraint fathom_constraint;

/* A loaded model and the threads that run it. All threads at once. */
typedef struct fathom_engine fathom_engine;

/* Why a call failed. Immutable; all threads at once. Free with `fathom_error_free`, unless an event lent it. */
typedef struct fathom_error fathom_error;

/* Reads the output of one request. One thread at a time. */
typedef struct fathom_parser fathom_parser;

/* A request, ready for the engine. All threads at once when it has no pending images, else one at a time. */
typedef struct fathom_prepared fathom_prepared;

/* Where events of requests wait for their consumer. All threads at once; may outlive the engine. */
typedef struct fathom_queue fathom_queue;

/* Model names, templates, limits and a tokenizer. Immutable; all threads at once. */
typedef struct fathom_recipe fathom_recipe;

/* A vocabulary. Immutable; all threads at once. */
typedef struct fathom_tokenizer fathom_tokenizer;

/*
 * What a call answers: below 100 the caller can fix it, below 200 try later or elsewhere, below 300 the
 * environment, from 900 a bug in fathom. Numbers are never reused; treat unknown ones by range.
 */
typedef int32_t fathom_status;

/* Borrowed UTF-8. Never owned, never required to end in NUL. {NULL, 0} is "absent". */
typedef struct fathom_str {
  /* First byte. */
  const char *ptr;
  /* Number of bytes, a NUL after them not counted. */
  size_t len;
} fathom_str;

/* Never 0, never reused in a process. */
typedef uint64_t fathom_request_id;

/* Done. */
#define FATHOM_OK 0

/* NULL, a bad length, a wrong handle, an unknown enum. */
#define FATHOM_ERR_INVALID_ARGUMENT 1

/* Text that is not UTF-8. */
#define FATHOM_ERR_INVALID_UTF8 2

/* Not JSON, or not the request's shape. */
#define FATHOM_ERR_INVALID_JSON 3

/* Valid JSON, refused by the rules of the protocol. */
#define FATHOM_ERR_INVALID_REQUEST 4

/* The model's name is not known. */
#define FATHOM_ERR_UNKNOWN_MODEL 5

/* Prompt and output do not fit the context. */
#define FATHOM_ERR_CONTEXT_LENGTH 6

/* A schema, regex or grammar cannot be compiled. */
#define FATHOM_ERR_CONSTRAINT 7

/* An image is undecodable or too large, or there are too many. */
#define FATHOM_ERR_IMAGE 8

/* Fetching an image was refused by policy, or failed. */
#define FATHOM_ERR_IMAGE_FETCH 9

/* Not in this build, or not on this device. */
#define FATHOM_ERR_UNSUPPORTED 10

/* Right call, wrong moment; or two threads at once. */
#define FATHOM_ERR_STATE 11

/* What was named does not exist. */
#define FATHOM_ERR_NOT_FOUND 12

/* Header and library do not match. */
#define FATHOM_ERR_ABI 13

/* The admission queue is full. */
#define FATHOM_ERR_BUSY 100

/* A deadline passed. */
#define FATHOM_ERR_DEADLINE 101

/* Cancelled by the host. */
#define FATHOM_ERR_CANCELLED 102

/* Pushed out of the queue by a higher priority; a running request resumes instead. */
#define FATHOM_ERR_PREEMPTED 103

/* The engine is shutting down. */
#define FATHOM_ERR_SHUTDOWN 104

/* Reading or writing failed. */
#define FATHOM_ERR_IO 200

/* The model's files are damaged or not understood. */
#define FATHOM_ERR_BAD_MODEL 201

/* Not enough host memory. */
#define FATHOM_ERR_HOST_MEMORY 202

/* Not enough device memory. */
#define FATHOM_ERR_DEVICE_MEMORY 203

/* A device failed. */
#define FATHOM_ERR_DEVICE 204

/* The handle crossed a fork(). */
#define FATHOM_ERR_FORKED 205

/* A bug in fathom was contained. */
#define FATHOM_ERR_PANIC 900

/* An earlier panic left this object unusable. */
#define FATHOM_ERR_POISONED 901

/* An impossible state: a bug in fathom. */
#define FATHOM_ERR_INTERNAL 902

/* ---- Library: version, devices, log, bytes, errors ---- */

/*
 * Takes one log record. `level`: 1 error, 2 warn, 3 info, 4 debug, 5 trace; prompts and generated text appear at
 * trace only. Runs on any thread, at the same time on several; must not call fathom, nor throw.
 */
typedef void (*fathom_log_fn)(void *user_data,
                              int32_t level,
                              const char *target,
                              size_t target_len,
                              const char *message,
                              size_t message_len);

/* The library's version, "0.1.0". Static; never freed. Never blocks, any thread. */
FATHOM_API const char *fathom_version(void);

/*
 * The library's FATHOM_ABI_VERSION. A binding compares it with the constant it was built with, when it
 * loads. Never blocks, any thread.
 */
FATHOM_API uint32_t fathom_abi_version(void);

/* The constant's name ("FATHOM_ERR_BUSY"), or "unknown". Static; never freed. Never blocks, any thread. */
FATHOM_API const char *fathom_status_name(fathom_status s);

/*
 * JSON: version, commit, target, `features` of this build, what is `missing` from it (such calls answer
 * FATHOM_ERR_UNSUPPORTED), GPU targets, and the variables of the environment that dependencies would read
 * and are kept from (none). Static; never freed. Never blocks, any thread.
 */
FATHOM_API const char *fathom_build_info(void);

/*
 * The devices a model can be opened on, as a JSON array, best last; `device` is what
 * fathom_engine_options takes. Opens no device. Any thread.
 */
FATHOM_API FATHOM_NODISCARD fathom_status fathom_devices(fathom_buf **out_json, fathom_error **err);

/*
 * Sends log records up to `max_level` (0 = none) to `fn`; NULL ends it. Off until called.
 * Waits until the previous callback is not running, then calls its `drop`. When this call fails, `drop` is
 * not called. Any thread. Statuses: FATHOM_ERR_INVALID_ARGUMENT for an unknown level, FATHOM_ERR_STATE from
 * inside a callback.
 */
FATHOM_API
fathom_status fathom_set_log(int32_t max_level,
                             fathom_log_fn fn,
                             void *user_data,
                             void (*drop)(void *user_data));

/*
 * The bytes, of which there are `*len`; a NUL stands behind the last. They live as long as `b`. `len` may
 * be NULL. NULL and 0 for what is no live buffer. Never blocks, any thread.
 */
FATHOM_API const uint8_t *fathom_buf_data(const fathom_buf *b, size_t *len);

/* Gives a buffer back. NULL is fine. Never blocks, any thread. */
FATHOM_API void fathom_buf_free(fathom_buf *b);

/*
 * The status that the failed call answered. FATHOM_ERR_INVALID_ARGUMENT for what is no live error. Never
 * blocks, any thread.
 */
FATHOM_API fathom_status fathom_error_status(const fathom_error *e);

/* What happened, for a person. Lives as long as `e`; `len` may be NULL. Never blocks, any thread. */
FATHOM_API const char *fathom_error_message(const fathom_error *e, size_t *len);

/*
 * Where: the path in the request ("messages[2].content"), the option's key or the argument's name; empty
 * when there is none. Lives as long as `e`; `len` may be NULL. Never blocks, any thread.
 */
FATHOM_API const char *fathom_error_param(const fathom_error *e, size_t *len);

/* What a server should answer: 400, 429, 503, ... 500 for what is no live error. Never blocks, any thread. */
FATHOM_API int32_t fathom_error_http_status(const fathom_error *e);

/*
 * The JSON body of the answer, in the dialect of `protocol` (FATHOM_PROTOCOL_*). The recipe's options
 * `error_param` and `messages_error_shape` change it. Free with fathom_buf_free. Never blocks, any thread.
 */
FATHOM_API
FATHOM_NODISCARD
fathom_status fathom_error_body(const fathom_error *e,
                                int32_t protocol,
                                fathom_buf **out_json);

/*
 * An error of the caller's own with the same content: keeps one that an event lent. NULL for what is no
 * live error. Free with fathom_error_free. Never blocks, any thread.
 */
FATHOM_API FATHOM_NODISCARD fathom_error *fathom_error_retain(const fathom_error *e);

/*
 * Gives an error back. NULL is fine, and so is one that an event lent: it stays its batch's. Never blocks,
 * any thread.
 */
FATHOM_API void fathom_error_free(fathom_error *e);

/* ---- Engine ---- */

/* Results do not depend on what else runs (level D2), or FATHOM_ERR_UNSUPPORTED. */
#define FATHOM_ENGINE_DETERMINISTIC (1 << 0)

/* No reuse of common prefixes. */
#define FATHOM_ENGINE_NO_PREFIX_CACHE (1 << 1)

/* No drafts, whatever a request asks for. */
#define FATHOM_ENGINE_NO_SPECULATION (1 << 2)

/* Dry run: reads headers, computes the memory plan, loads nothing; the engine is born closed. */
#define FATHOM_ENGINE_PLAN_ONLY (1 << 3)

/* Takes requests. */
#define FATHOM_ENGINE_READY 0

/* Shutting down: finishes what runs. */
#define FATHOM_ENGINE_DRAINING 1

/* A fault ended every request; can only be freed. */
#define FATHOM_ENGINE_FAILED 2

/* Shut down, or a plan only. */
#define FATHOM_ENGINE_CLOSED 3

/*
 * Told how far opening is: `fraction` of 1, and the name of the phase. Runs on the opening thread at most
 * ten times a second; must not call fathom, nor throw. Nonzero aborts.
 */
typedef int32_t (*fathom_progress_fn)(void *user_data, float fraction, const char *phase, size_t phase_len);

/* How an engine is opened. Set up with fathom_engine_options_init. */
typedef struct fathom_engine_options {
  /* Set by fathom_engine_options_init. */
  size_t struct_size;
  /* A directory of safetensors, config.json and tokenizer.json. */
  fathom_str model_path;
  /* "cpu", "cuda", "cuda:0,1"; absent = the best that works. */
  fathom_str device;
  /* 0 = what is free after weights, within memory_share. */
  uint64_t kv_bytes;
  /* 0 = from the model. */
  uint32_t max_context;
  /* Sequences decoded together; 0 = 256 on GPU, 16 on CPU. */
  uint32_t max_running;
  /* Beyond it submit answers FATHOM_ERR_BUSY; 0 = 4096. */
  uint32_t max_queued;
  /* 0 = physical cores of the affinity mask. */
  uint32_t cpu_threads;
  /* FATHOM_ENGINE_*. */
  uint32_t flags;
  /* Zero. */
  uint32_t reserved0;
  /* May be NULL. */
  fathom_progress_fn progress;
  /* For `progress`. */
  void *progress_data;
  /* Everything experimental: one JSON object. */
  fathom_str tuning_json;
} fathom_engine_options;

/* What became of the options. Zero it, set struct_size. */
typedef struct fathom_engine_info {
  /* Set by the caller. */
  size_t struct_size;
  /* Ids the model knows. */
  uint32_t vocab_size;
  /* Positions a sequence may have. */
  uint32_t max_context;
  /* Sequences decoded together. */
  uint32_t max_running;
  /* Devices in use. */
  uint32_t device_count;
  /* Bytes of weights. */
  uint64_t weight_bytes;
  /* Bytes of paged state. */
  uint64_t kv_bytes;
  /* Blocks of paged state. */
  uint64_t kv_blocks;
  /* Lives as long as the engine. */
  const char *model_name;
} fathom_engine_info;

/* Zeroes `struct_size` bytes, writes the size and sets defaults. Pass sizeof(fathom_engine_options). */
FATHOM_API void fathom_engine_options_init(struct fathom_engine_options *o, size_t struct_size);

/*
 * Loads a model. Blocks, for minutes with a large one. Free with fathom_engine_free. Any thread.
 * Statuses: FATHOM_ERR_NOT_FOUND, _IO, _BAD_MODEL, _HOST_MEMORY, _DEVICE_MEMORY, _UNSUPPORTED,
 * _CANCELLED (by `progress`), _INVALID_ARGUMENT with the option as param, _ABI.
 */
FATHOM_API
FATHOM_NODISCARD
fathom_status fathom_engine_open(const struct fathom_engine_options *o,
                                 fathom_engine **out,
                                 fathom_error **err);

/*
 * FATHOM_ENGINE_READY, _DRAINING, _FAILED or _CLOSED; CLOSED for what is no live engine of this process.
 * No device work, never blocks, any thread.
 */
FATHOM_API int32_t fathom_engine_state(const fathom_engine *e);

/* Copies what became of the options into `out`, as far as its struct_size reaches. Never blocks, any thread. */
FATHOM_API fathom_status fathom_engine_info_get(const fathom_engine *e, struct fathom_engine_info *out);

/*
 * Refuses new requests, gives running ones `drain_ms`, ends the rest with
 * FATHOM_ERR_SHUTDOWN and joins the engine's threads. Blocks. Any thread, but no callback
 * (FATHOM_ERR_STATE). FATHOM_ERR_DEVICE when a device never answered.
 */
FATHOM_API fathom_status fathom_engine_shutdown(fathom_engine *e, int64_t drain_ms, fathom_error **err);

/* Forgets cached prefixes. Never blocks, any thread. */
FATHOM_API fathom_status fathom_engine_clear_cache(fathom_engine *e, fathom_error **err);

/*
 * Shuts down with no time to drain, then gives the engine back. NULL is fine. Blocks while threads are
 * joined; called from a callback it returns at once and another thread does that. Does nothing in the child
 * of a fork. Any thread.
 */
FATHOM_API void fathom_engine_free(fathom_engine *e);

/* ---- Requests ---- */

/* `seed` is meant. */
#define FATHOM_SUBMIT_SEED (1 << 0)

/* Neither reads nor writes the prefix cache. */
#define FATHOM_SUBMIT_NO_CACHE (1 << 1)

/* Tokens stay "unread" until fathom_ack. */
#define FATHOM_SUBMIT_ACK (1 << 2)

/*
 * What the host wants of the engine for one request. Set up with fathom_submit_options_init. Everything it
 * points to is copied before the call returns.
 */
typedef struct fathom_submit_options {
  /* Set by fathom_submit_options_init. */
  size_t struct_size;
  /* Returned in every event; the caller's own meaning. */
  uint64_t tag;
  /* -3..4, larger first; 0 = normal. */
  int32_t priority;
  /* FATHOM_SUBMIT_*. */
  uint32_t flags;
  /* For the whole request, from now; 0 = none. */
  uint64_t deadline_ms;
  /* The request is paused beyond it; 0 = 4096. */
  uint32_t max_unread_tokens;
  /* 0 = as prepared, without it the model's default. */
  uint32_t max_tokens;
  /* NaN (set by init) = as prepared, without it the model's default. */
  float temperature;
  /* NaN (set by init) = as prepared, without it the model's default. */
  float top_p;
  /* Used with FATHOM_SUBMIT_SEED; else as prepared, or drawn and reported. */
  uint64_t seed;
  /* Alternatives wanted for each token, up to 1000; 0 = as prepared. */
  uint32_t logprobs;
  /* Up to 64. */
  uint32_t stop_token_count;
  /* Added to the model's end tokens. */
  const uint32_t *stop_tokens;
  /* Instead of the prepared one; borrowed for the call. */
  const fathom_constraint *constraint;
  /* Every other parameter of a request: one JSON object. */
  fathom_str params_json;
} fathom_submit_options;

/* Zeroes `struct_size` bytes, writes the size and sets defaults. Pass sizeof(fathom_submit_options). */
FATHOM_API void fathom_submit_options_init(struct fathom_submit_options *o, size_t struct_size);

/*
 * Gives a prepared request to the engine; its events come through `q` and end with one
 * FATHOM_EVENT_DONE. `o` may be NULL. Never waits for the device; any thread. Statuses: FATHOM_ERR_BUSY
 * (the admission queue is full), _STATE (images are pending, no tokenizer, the engine is closed),
 * _SHUTDOWN, _CONTEXT_LENGTH, _UNSUPPORTED, _INVALID_ARGUMENT with the option as param, _FORKED; of a failed
 * engine its cause.
 */
FATHOM_API
FATHOM_NODISCARD
fathom_status fathom_submit(fathom_engine *e,
                            fathom_queue *q,
                            const fathom_prepared *p,
                            const struct fathom_submit_options *o,
                            fathom_request_id *out,
                            fathom_error **err);

/*
 * As fathom_submit, for bare token ids. Takes milliseconds with long prompts, and a moment for the first request of an
 * engine that has stop strings, whose text is that of the model's own tokenizer.json (FATHOM_ERR_STATE without one).
 */
FATHOM_API
FATHOM_NODISCARD
fathom_status fathom_submit_tokens(fathom_engine *e,
                                   fathom_queue *q,
                                   const uint32_t *tokens,
                                   size_t count,
                                   const struct fathom_submit_options *o,
                                   fathom_request_id *out,
                                   fathom_error **err);

/*
 * Ends requests; the DONE of each follows. Idempotent: finished and unknown ids are skipped. Returns at once;
 * any thread.
 */
FATHOM_API fathom_status fathom_cancel(fathom_engine *e, const fathom_request_id *ids, size_t count);

/*
 * Reports `tokens[i]` more tokens of request `ids[i]` as read, for requests with FATHOM_SUBMIT_ACK. More than
 * is outstanding counts as all of it; unknown and finished ids are skipped. Returns at once; any thread.
 */
FATHOM_API
fathom_status fathom_ack(fathom_engine *e,
                         const fathom_request_id *ids,
                         const uint32_t *tokens,
                         size_t count);

/* ---- Polling: queues and events ---- */

/* Tokens of one request that became ready together. */
#define FATHOM_EVENT_TOKENS 1

/* One event of the protocol, made by the parser. */
#define FATHOM_EVENT_DATA 2

/* The end of a request: exactly one, last. */
#define FATHOM_EVENT_DONE 3

/* Not ended. */
#define FATHOM_FINISH_NONE 0

/* An end token, a stop token, a stop sequence or a complete constraint. */
#define FATHOM_FINISH_STOP 1

/* max_tokens, the context, or a loop. */
#define FATHOM_FINISH_LENGTH 2

/* Tool calls, found by the parser. */
#define FATHOM_FINISH_TOOL_CALLS 3

/* Cancel, deadline or shutdown: the event's error says which. */
#define FATHOM_FINISH_CANCELLED 4

/* Failed: the event's error says why. */
#define FATHOM_FINISH_ERROR 5

/* How a queue wakes its consumer. Zero it, set struct_size. */
typedef struct fathom_queue_options {
  /* Set by the caller. */
  size_t struct_size;
  /* None yet: 0. */
  uint32_t flags;
  /* Never wake the consumer more often; 0 = each engine step. */
  uint32_t wake_interval_us;
} fathom_queue_options;

/* `intptr_t` of C, under a name that cbindgen.toml renders so. */
typedef ptrdiff_t intptr_t;

/*
 * Called when a queue goes from empty to not empty. Runs on an engine thread; must only signal: not block, not
 * call fathom, nor throw.
 */
typedef void (*fathom_wake_fn)(void *user_data);

/* Counts and times of a request. Frozen: new numbers go into `detail`. */
typedef struct fathom_usage {
  /* Positions of the prompt. */
  uint32_t prompt_tokens;
  /* Of these, found in the prefix cache. */
  uint32_t cached_tokens;
  /* Generated, the stop token included. */
  uint32_t completion_tokens;
  /* Of these, reasoning. */
  uint32_t reasoning_tokens;
  /* Drafts verified. */
  uint32_t drafted_tokens;
  /* Of these, accepted. */
  uint32_t accepted_tokens;
  /* Until its first row ran. */
  uint64_t queued_us;
  /* Until its first token. */
  uint64_t prefill_us;
  /* Until its end. */
  uint64_t decode_us;
} fathom_usage;

/*
 * What a queue or a parser delivers. It and all that it points to live in the batch, until the next call
 * with that batch or its free.
 */
typedef struct fathom_event {
  /* Whose; 0 from a parser. */
  fathom_request_id request;
  /* The request's tag. */
  uint64_t tag;
  /* FATHOM_EVENT_*. */
  int32_t kind;
  /* FATHOM_FINISH_*, in DONE. */
  int32_t finish;
  /* TOKENS. */
  const uint32_t *tokens;
  /* TOKENS: token_count, the chosen tokens' own; NULL unless asked for. */
  const float *logprobs;
  /* TOKENS: length of the span. DATA: tokens behind this event. */
  size_t token_count;
  /* DATA: the protocol's event name, or absent. */
  fathom_str name;
  /* DATA: one JSON document, no framing. */
  fathom_str data;
  /* DONE with FATHOM_FINISH_ERROR or _CANCELLED: borrowed, see fathom_error_retain. */
  const fathom_error *error;
  /* DONE; the first TOKENS of a request: prompt side only. */
  const struct fathom_usage *usage;
  /* TOKENS: token_count x top_count ids, most probable first; NULL unless asked for. */
  const uint32_t *top_tokens;
  /* TOKENS: same shape. */
  const float *top_logprobs;
  /* TOKENS: alternatives for each token. */
  uint32_t top_count;
  /* Which of the n siblings, from 0. */
  uint32_t choice;
  /* DONE, and the first TOKENS of a request: one JSON object. */
  fathom_str detail;
} fathom_event;

/* An empty queue. `o` may be NULL. Free with fathom_queue_free. Never blocks, any thread. */
FATHOM_API
FATHOM_NODISCARD
fathom_status fathom_queue_new(const struct fathom_queue_options *o,
                               fathom_queue **out,
                               fathom_error **err);

/*
 * A descriptor (a HANDLE on Windows) that is readable exactly while something waits, for epoll and its kin.
 * It is the queue's: never read or close it. Never blocks, any thread.
 */
FATHOM_API fathom_status fathom_queue_fd(fathom_queue *q, intptr_t *out);

/*
 * Calls `fn` each time the queue goes from empty to not empty; NULL ends it. Waits until the previous callback
 * is not running, and then its `drop` has run; fathom_queue_free does the same. When this call fails, `drop` is
 * not called. Any thread, but no callback (FATHOM_ERR_STATE).
 */
FATHOM_API
fathom_status fathom_queue_on_ready(fathom_queue *q,
                                    fathom_wake_fn fn,
                                    void *user_data,
                                    void (*drop)(void *user_data));

/*
 * Takes everything that is ready into `b`; waits up to `timeout_ms` for something (0 = not at all, -1 = without
 * limit), or for fathom_queue_wake. `*events` is an array of `*count` events of the batch's stride, which lives
 * until the next call with `b`. A timeout is FATHOM_OK with no events. The protocol parsing of fathom_call
 * happens here. Any thread, each with its own batch.
 */
FATHOM_API
FATHOM_NODISCARD
fathom_status fathom_queue_poll(fathom_queue *q,
                                fathom_batch *b,
                                int64_t timeout_ms,
                                const struct fathom_event **events,
                                size_t *count,
                                fathom_error **err);

/* Ends one wait in fathom_queue_poll early. Never blocks, any thread. */
FATHOM_API fathom_status fathom_queue_wake(fathom_queue *q);

/*
 * Discards what waits, cancels the requests that deliver here and gives the queue back. NULL is fine. Called from
 * a callback it returns at once and another thread does that. Does nothing in the child of a fork. Any thread.
 */
FATHOM_API
void fathom_queue_free(fathom_queue *q);

/* ---- Polling: batches ---- */

/*
 * Memory for events. `event_size` is the caller's sizeof(fathom_event), which arrays keep as their stride.
 * Free with fathom_batch_free. Never blocks, any thread.
 */
FATHOM_API FATHOM_NODISCARD fathom_status fathom_batch_new(size_t event_size, fathom_batch **out);

/* Gives a batch back, and with it the events of its last poll. NULL is fine. Never blocks. */
FATHOM_API void fathom_batch_free(fathom_batch *b);

/* ---- Recipe: requests to tokens ---- */

/* OpenAI Chat Completions. */
#define FATHOM_PROTOCOL_CHAT_COMPLETIONS 1

/* OpenAI Responses. */
#define FATHOM_PROTOCOL_RESPONSES 2

/* Anthropic Messages. */
#define FATHOM_PROTOCOL_MESSAGES 3

/* No wire protocol: the normalized model in, neutral events out. */
#define FATHOM_PROTOCOL_CONVERSATION 4

/* How a recipe is opened. Set up with fathom_recipe_options_init. */
typedef struct fathom_recipe_options {
  /* Set by fathom_recipe_options_init. */
  size_t struct_size;
  /* tokenizer.json, or a directory holding one; absent = none: prompts and text only. */
  fathom_str tokenizer_path;
  /* {"my-model": "v4.1", "other-*": "v4"}. */
  fathom_str aliases_json;
  /* 0 = of the model: 1048576. */
  uint32_t max_context;
  /* None yet: 0. */
  uint32_t flags;
  /* 0 = 600. */
  uint32_t max_images;
  /* 0 = 8. */
  uint32_t max_image_concurrency;
  /* 0 = 32 MiB each. */
  uint64_t max_image_bytes;
  /* 0 = 64 MiB. */
  uint64_t max_image_total_bytes;
  /* 0 = 8192 x 8192; a cap against decompression bombs. */
  uint64_t max_image_pixels;
  /* Every other option; an unknown key is an error. */
  fathom_str options_json;
} fathom_recipe_options;

/* What a request asks for. Zero it, set struct_size. */
typedef struct fathom_prepared_info {
  /* Set by the caller. */
  size_t struct_size;
  /* The resolved name; lives as long as the prepared request. */
  const char *model;
  /* FATHOM_PROTOCOL_*. */
  int32_t protocol;
  /* The request's own streaming switch. */
  uint32_t stream;
  /* Input positions: ids of the prompt, each image at its full length once its size is known. */
  uint32_t token_count;
  /* Images of the request. */
  uint32_t image_count;
  /* Of these, those whose bytes are not there. */
  uint32_t pending_images;
  /* The output budget. */
  uint32_t max_tokens;
  /* As requested, or the default. */
  float temperature;
  /* As requested, or the default. */
  float top_p;
  /* FATHOM_CONSTRAINT_*; 0 = none. */
  int32_t constraint_kind;
  /* Zero. */
  uint32_t reserved0;
} fathom_prepared_info;

/* Bytes `start` up to but without `end`. Frozen. */
typedef struct fathom_range {
  /* First byte. */
  size_t start;
  /* First byte behind it. */
  size_t end;
} fathom_range;

/* Zeroes `struct_size` bytes, writes the size and sets defaults. Pass sizeof(fathom_recipe_options). */
FATHOM_API void fathom_recipe_options_init(struct fathom_recipe_options *o, size_t struct_size);

/*
 * Opens a recipe: reads the tokenizer. `o` may be NULL. Blocks while reading. Free with fathom_recipe_free. Any
 * thread. Statuses: FATHOM_ERR_BAD_MODEL (the tokenizer's file), _INVALID_ARGUMENT with the option as param, _ABI.
 */
FATHOM_API
FATHOM_NODISCARD
fathom_status fathom_recipe_open(const struct fathom_recipe_options *o,
                                 fathom_recipe **out,
                                 fathom_error **err);

/* Gives a recipe back; what was prepared with it lives on. NULL is fine. Never blocks, any thread. */
FATHOM_API void fathom_recipe_free(fathom_recipe *r);

/* As fathom_prepare_with, without options. */
FATHOM_API
FATHOM_NODISCARD
fathom_status fathom_prepare(const fathom_recipe *r,
                             int32_t protocol,
                             const char *json,
                             size_t json_len,
                             fathom_prepared **out,
                             fathom_error **err);

/*
 * Validates a request, resolves its model, renders the prompt and tokenises it. `options_json` changes this
 * request only; it comes from the host, never from a client; NULL for none. Decodes and fetches no image. Takes
 * milliseconds with long prompts. Free with fathom_prepared_free. Any thread. Statuses: FATHOM_ERR_INVALID_UTF8,
 * _INVALID_JSON, _INVALID_REQUEST, _UNKNOWN_MODEL, _CONTEXT_LENGTH; _INVALID_ARGUMENT for the host's own options;
 * _UNSUPPORTED.
 */
FATHOM_API
FATHOM_NODISCARD
fathom_status fathom_prepare_with(const fathom_recipe *r,
                                  int32_t protocol,
                                  const char *json,
                                  size_t json_len,
                                  const char *options_json,
                                  size_t options_len,
                                  fathom_prepared **out,
                                  fathom_error **err);

/* Copies what the request asks for into `out`, as far as its struct_size reaches. Never blocks. */
FATHOM_API fathom_status fathom_prepared_info_get(const fathom_prepared *p, struct fathom_prepared_info *out);

/* The ids of the prompt, one for each image. They live as long as `p`. None without a tokenizer. Never blocks. */
FATHOM_API
fathom_status fathom_prepared_tokens(const fathom_prepared *p,
                                     const uint32_t **tokens,
                                     size_t *count);

/* The text of the prompt, a NUL behind it. It lives as long as `p`. Never blocks. */
FATHOM_API fathom_status fathom_prepared_prompt(const fathom_prepared *p, const char **text, size_t *len);

/*
 * The bytes of the prompt that are special tokens, ascending; the rest is text, whatever it spells. They live as
 * long as `p`. Never blocks.
 */
FATHOM_API
fathom_status fathom_prepared_special_ranges(const fathom_prepared *p,
                                             const struct fathom_range **ranges,
                                             size_t *count);

/*
 * Everything the request was converted to, as one JSON object: conversation, inference and parsing options,
 * images, warnings. Free with fathom_buf_free. Never blocks.
 */
FATHOM_API
FATHOM_NODISCARD
fathom_status fathom_prepared_options_json(const fathom_prepared *p,
                                           fathom_buf **out,
                                           fathom_error **err);

/* Gives a prepared request back; parsers made from it live on. NULL is fine. Never blocks, any thread. */
FATHOM_API void fathom_prepared_free(fathom_prepared *p);

/* ---- Recipe: tokens to events ---- */

/* For fathom_parser_finish, beside FATHOM_FINISH_*: a filter of the host ended the output. */
#define FATHOM_PARSER_CONTENT_FILTER 100

/* What a backend knows before the first token; all optional. Zero it, set struct_size. */
typedef struct fathom_parser_start_info {
  /* Set by the caller. */
  size_t struct_size;
  /* Positions of the prompt. */
  uint32_t prompt_tokens;
  /* Of these, found in a cache. */
  uint32_t cached_tokens;
  /* 0 = now. */
  int64_t created_unix_s;
  /* Absent = generated. */
  fathom_str response_id;
  /* Absent = the option's. */
  fathom_str system_fingerprint;
  /* Absent = the request's own. */
  fathom_str model;
  /* Which of the n siblings; each has a parser of its own. */
  uint32_t choice;
  /* Zero. */
  uint32_t reserved0;
} fathom_parser_start_info;

/* One step of a backend: ids or text, with or without logprobs. Zero it, set struct_size. */
typedef struct fathom_chunk {
  /* Set by the caller. */
  size_t struct_size;
  /* Ids, in order. */
  const uint32_t *tokens;
  /* How many. */
  size_t token_count;
  /* Instead of tokens. */
  fathom_str text;
  /* How many tokens the text stands for. */
  uint32_t text_tokens;
  /* Alternatives for each token. */
  uint32_t top_count;
  /* token_count, NaN where missing; or NULL. */
  const float *logprobs;
  /* token_count x top_count, UINT32_MAX where unused; or NULL. */
  const uint32_t *top_tokens;
  /* Same shape. */
  const float *top_logprobs;
} fathom_chunk;

/*
 * A parser for the output of `p`, which may be freed before it. Free with fathom_parser_free. Never blocks, any
 * thread.
 */
FATHOM_API
FATHOM_NODISCARD
fathom_status fathom_parser_new(const fathom_prepared *p,
                                fathom_parser **out,
                                fathom_error **err);

/*
 * Gives what is known before the first token, and yields the opening events. Optional; changes nothing after
 * output started. `i` may be NULL. The events live in `b` until the next call with it. Never blocks; one thread
 * at a time (FATHOM_ERR_STATE).
 */
FATHOM_API
fathom_status fathom_parser_start(fathom_parser *s,
                                  const struct fathom_parser_start_info *i,
                                  fathom_batch *b,
                                  const fathom_event **events,
                                  size_t *event_count,
                                  fathom_error **err);

/*
 * Reads more output: ids or text, not both. The push in which the output ends closes its events with one of kind
 * DONE: stop generating then. After the end it is FATHOM_OK without events, after a failure the same status
 * again. The events live in `b` until the next call with it. Never blocks; one thread at a time
 * (FATHOM_ERR_STATE).
 */
FATHOM_API
fathom_status fathom_parser_push(fathom_parser *s,
                                 const struct fathom_chunk *chunk,
                                 fathom_batch *b,
                                 const fathom_event **events,
                                 size_t *event_count,
                                 fathom_error **err);

/* fathom_parser_push for ids alone. */
FATHOM_API
fathom_status fathom_parser_push_tokens(fathom_parser *s,
                                        const uint32_t *tokens,
                                        size_t count,
                                        fathom_batch *b,
                                        const fathom_event **events,
                                        size_t *event_count,
                                        fathom_error **err);

/*
 * fathom_parser_push for text that stands for `token_count` tokens. Markers can then only be matched by their
 * spelling. Bytes that end inside a character are FATHOM_ERR_INVALID_UTF8.
 */
FATHOM_API
fathom_status fathom_parser_push_text(fathom_parser *s,
                                      const char *text,
                                      size_t len,
                                      uint32_t token_count,
                                      fathom_batch *b,
                                      const fathom_event **events,
                                      size_t *event_count,
                                      fathom_error **err);

/*
 * Flushes what was held back and yields the closing events. `finish` is FATHOM_FINISH_STOP, _LENGTH, _TOOL_CALLS
 * (as _STOP), _NONE (the input simply ended) or FATHOM_PARSER_CONTENT_FILTER. `usage` may be NULL; it corrects
 * prompt and cached tokens. The events live in `b` until the next call with it. Never blocks; one thread at a
 * time.
 */
FATHOM_API
fathom_status fathom_parser_finish(fathom_parser *s,
                                   int32_t finish,
                                   const fathom_usage *usage,
                                   fathom_batch *b,
                                   const fathom_event **events,
                                   size_t *event_count,
                                   fathom_error **err);

/*
 * Ends the stream with the protocol's error event: the backend, or the parser, failed. Events that a failed push
 * had made come first. `http_status` is 400..599. The events live
 * in `b` until the next call with it. Never blocks; one thread at a time.
 */
FATHOM_API
fathom_status fathom_parser_fail(fathom_parser *s,
                                 int32_t http_status,
                                 const char *message,
                                 size_t len,
                                 fathom_batch *b,
                                 const fathom_event **events,
                                 size_t *event_count,
                                 fathom_error **err);

/*
 * The whole answer as one JSON document, for a request that is not streamed. Free with fathom_buf_free. Never
 * blocks; one thread at a time.
 */
FATHOM_API
FATHOM_NODISCARD
fathom_status fathom_parser_response(const fathom_parser *s,
                                     fathom_buf **out_json,
                                     fathom_error **err);

/*
 * The recoveries so far, as JSON: [{"code": "R8", "offset": 120, "count": 1}, ...]. Free with fathom_buf_free.
 * Never blocks; one thread at a time.
 */
FATHOM_API
FATHOM_NODISCARD
fathom_status fathom_parser_diagnostics(const fathom_parser *s,
                                        fathom_buf **out_json,
                                        fathom_error **err);

/* Gives a parser back. NULL is fine. Never blocks, any thread. */
FATHOM_API void fathom_parser_free(fathom_parser *s);

/* ---- Images ---- */

/* An http or https URL. */
#define FATHOM_IMAGE_URL 1

/* Inside the request. */
#define FATHOM_IMAGE_INLINE 2

/* Reserved: requests with file ids are refused today. */
#define FATHOM_IMAGE_FILE_ID 3

/* http, too. */
#define FATHOM_FETCH_ALLOW_HTTP (1 << 0)

/* Private addresses, too: `decide` alone decides. */
#define FATHOM_FETCH_ALLOW_PRIVATE (1 << 1)

/* The model's own input: bfloat16 patches. */
#define FATHOM_PIXELS_BF16_PATCHES 1

/* The canvas, three bytes a pixel. */
#define FATHOM_PIXELS_RGB8 2

/* The canvas as a WebP file. */
#define FATHOM_PIXELS_WEBP 3

/* Where an image comes from. Zero it, set struct_size. */
typedef struct fathom_image_source {
  /* Set by the caller. */
  size_t struct_size;
  /* FATHOM_IMAGE_*. */
  int32_t kind;
  /* 1 once bytes are there. */
  uint32_t resolved;
  /* URL kind, exactly as the client sent it. Lives as long as the prepared request. */
  fathom_str url;
  /* Reserved. */
  fathom_str file_id;
} fathom_image_source;

/* What the built-in fetcher may do. Zero it, set struct_size. */
typedef struct fathom_fetch_policy {
  /* Set by the caller. */
  size_t struct_size;
  /* FATHOM_FETCH_*; 0 = https to public addresses only. */
  uint32_t flags;
  /* Each hop is checked again; 0 = none followed. */
  uint32_t max_redirects;
  /* For the whole set; 0 = 60 s for each attempt. */
  uint64_t timeout_ms;
  /* Absent = any public host. */
  fathom_str allow_hosts_json;
  /* Judges an address before it is connected to; nonzero refuses. May be NULL; must not call fathom, nor throw. */
  int32_t (*decide)(void *user_data,
                    const char *host,
                    size_t host_len,
                    const uint8_t *address,
                    size_t address_len,
                    uint16_t port);
  /* For `decide`. */
  void *decide_data;
} fathom_fetch_policy;

/* Where image `index` comes from. Never blocks. This build answers FATHOM_ERR_UNSUPPORTED. */
FATHOM_API
fathom_status fathom_prepared_image(const fathom_prepared *p,
                                    size_t index,
                                    struct fathom_image_source *out);

/*
 * What the model sees of image `index`, in FATHOM_PIXELS_*. Free with fathom_buf_free. This build answers
 * FATHOM_ERR_UNSUPPORTED.
 */
FATHOM_API
FATHOM_NODISCARD
fathom_status fathom_prepared_image_pixels(const fathom_prepared *p,
                                           size_t index,
                                           int32_t format,
                                           fathom_buf **out,
                                           fathom_error **err);

/*
 * Hands over the file of image `index`, fetched by the caller. Copies it; blocks while decoding. This build
 * answers FATHOM_ERR_UNSUPPORTED.
 */
FATHOM_API
fathom_status fathom_prepared_set_image(fathom_prepared *p,
                                        size_t index,
                                        const uint8_t *bytes,
                                        size_t len,
                                        fathom_error **err);

/*
 * Resolves what is pending: inline data, and with a policy URLs. NULL: inline data only. Blocks. This build
 * answers FATHOM_ERR_UNSUPPORTED.
 */
FATHOM_API
fathom_status fathom_prepared_fetch_images(fathom_prepared *p,
                                           const struct fathom_fetch_policy *policy,
                                           fathom_error **err);

/* ---- The ready-made adapter ---- */

/*
 * How one request is called. Set up with fathom_call_options_init. Everything it points to is copied before the
 * call returns.
 */
typedef struct fathom_call_options {
  /* Set by fathom_call_options_init. */
  size_t struct_size;
  /* NULL = defaults. */
  const fathom_submit_options *submit;
  /* NULL = a request with image URLs is refused. */
  const fathom_fetch_policy *fetch;
  /* Absent = generated. */
  fathom_str response_id;
  /* 0 = now; tests fix it. */
  int64_t created_unix_s;
  /* Of this request only. */
  fathom_str options_json;
} fathom_call_options;

/* Zeroes `struct_size` bytes, writes the size and sets defaults. Pass sizeof(fathom_call_options). */
FATHOM_API void fathom_call_options_init(struct fathom_call_options *o, size_t struct_size);

/*
 * Takes an API request, gives out an id and returns; preparation runs on the engine's threads. With
 * "stream": true the protocol's events come through `q` one by one, otherwise one DATA holds the response; then
 * DONE. What goes wrong after this call arrives in DONE. `o` may be NULL. Never blocks, any thread. Statuses:
 * FATHOM_ERR_BUSY, _STATE, _SHUTDOWN, _INVALID_ARGUMENT with the option as param, _UNSUPPORTED, _FORKED.
 */
FATHOM_API
FATHOM_NODISCARD
fathom_status fathom_call(fathom_engine *e,
                          const fathom_recipe *r,
                          fathom_queue *q,
                          int32_t protocol,
                          const char *json,
                          size_t json_len,
                          const struct fathom_call_options *o,
                          fathom_request_id *out,
                          fathom_error **err);

/*
 * fathom_call on a queue of its own, waiting for the end: the whole response as one JSON document, also if the
 * request asks for a stream. Free with fathom_buf_free. Blocks until the request is done; any thread, but no
 * callback. Statuses: those of fathom_call, and whatever DONE carries.
 */
FATHOM_API
FATHOM_NODISCARD
fathom_status fathom_call_blocking(fathom_engine *e,
                                   const fathom_recipe *r,
                                   int32_t protocol,
                                   const char *json,
                                   size_t json_len,
                                   const struct fathom_call_options *o,
                                   fathom_buf **out_json,
                                   fathom_error **err);

/* ---- Tokenizer ---- */

/* For fathom_tokenizer_encode: spellings of special tokens count as these tokens. */
#define FATHOM_TOKENIZE_ALLOW_SPECIAL (1 << 0)

/* For fathom_tokenizer_decode: special tokens give their spelling; else nothing. */
#define FATHOM_DETOKENIZE_KEEP_SPECIAL (1 << 1)

/*
 * Loads a tokenizer.json, or the one inside a directory. Blocks while reading. Free with fathom_tokenizer_free. Any
 * thread. FATHOM_ERR_BAD_MODEL when the file cannot be read or understood.
 */
FATHOM_API
FATHOM_NODISCARD
fathom_status fathom_tokenizer_open(const char *path,
                                    size_t path_len,
                                    fathom_tokenizer **out,
                                    fathom_error **err);

/*
 * The recipe's tokenizer, as a handle of its own. FATHOM_ERR_STATE for a recipe without one. Free with
 * fathom_tokenizer_free. Never blocks, any thread.
 */
FATHOM_API
FATHOM_NODISCARD
fathom_status fathom_recipe_tokenizer(const fathom_recipe *r,
                                      fathom_tokenizer **out);

/*
 * Writes the ids of `text` to `out`, which has room for `cap`, and their number to `*needed`. With too little room
 * nothing but `*needed` is written and the call answers FATHOM_OK; `len + 8` is always enough. Never blocks, any
 * thread.
 */
FATHOM_API
FATHOM_NODISCARD
fathom_status fathom_tokenizer_encode(const fathom_tokenizer *t,
                                      const char *text,
                                      size_t len,
                                      uint32_t flags,
                                      uint32_t *out,
                                      size_t cap,
                                      size_t *needed,
                                      fathom_error **err);

/*
 * The bytes that `tokens` stand for; they may end inside a character. Free with fathom_buf_free. Never blocks, any
 * thread. FATHOM_ERR_INVALID_ARGUMENT for an id outside the vocabulary.
 */
FATHOM_API
FATHOM_NODISCARD
fathom_status fathom_tokenizer_decode(const fathom_tokenizer *t,
                                      const uint32_t *tokens,
                                      size_t count,
                                      uint32_t flags,
                                      fathom_buf **out,
                                      fathom_error **err);

/*
 * The bytes that `token` stands for, without a NUL behind them. They live as long as the tokenizer. Never blocks,
 * any thread. FATHOM_ERR_NOT_FOUND outside the vocabulary.
 */
FATHOM_API
fathom_status fathom_tokenizer_token_bytes(const fathom_tokenizer *t,
                                           uint32_t token,
                                           const uint8_t **bytes,
                                           size_t *len);

/* The id whose spelling is exactly `text`. FATHOM_ERR_NOT_FOUND when there is none. Never blocks, any thread. */
FATHOM_API
fathom_status fathom_tokenizer_token_id(const fathom_tokenizer *t,
                                        const char *text,
                                        size_t len,
                                        uint32_t *out);

/* Number of ids, added tokens included. 0 for what is no live tokenizer. Never blocks, any thread. */
FATHOM_API uint32_t fathom_tokenizer_vocab_size(const fathom_tokenizer *t);

/* Gives a tokenizer back. NULL is fine. Never blocks, any thread. */
FATHOM_API void fathom_tokenizer_free(fathom_tokenizer *t);

/* ---- Constraints ---- */

/* Any JSON object. */
#define FATHOM_CONSTRAINT_JSON_OBJECT 1

/* JSON of a schema. */
#define FATHOM_CONSTRAINT_JSON_SCHEMA 2

/* Text that matches an expression. */
#define FATHOM_CONSTRAINT_REGEX 3

/* Lark. */
#define FATHOM_CONSTRAINT_GRAMMAR 4

/* EBNF. */
#define FATHOM_CONSTRAINT_EBNF 5

/* A JSON array of strings. */
#define FATHOM_CONSTRAINT_CHOICE 6

/* JSON. */
#define FATHOM_CONSTRAINT_STRUCTURAL_TAG 7

/*
 * Compiles a constraint of FATHOM_CONSTRAINT_* for a tokenizer, within the default limits. `spec` is absent for
 * FATHOM_CONSTRAINT_JSON_OBJECT. Blocks while compiling, at most 10 seconds; the first one of a tokenizer up to a
 * second more. Free with fathom_constraint_free. Any
 * thread. FATHOM_ERR_CONSTRAINT says what cannot be compiled, or which limit was exceeded.
 */
FATHOM_API
FATHOM_NODISCARD
fathom_status fathom_constraint_new(const fathom_tokenizer *t,
                                    int32_t kind,
                                    const char *spec,
                                    size_t spec_len,
                                    fathom_constraint **out,
                                    fathom_error **err);

/*
 * Whether a finished text satisfies the constraint: FATHOM_OK, or FATHOM_ERR_CONSTRAINT with the byte at which it
 * fails. Takes microseconds a byte; never waits, any thread.
 */
FATHOM_API
fathom_status fathom_constraint_check(const fathom_constraint *c,
                                      const char *text,
                                      size_t len,
                                      fathom_error **err);

/* Gives a constraint back; requests that use it go on. NULL is fine. Never blocks, any thread. */
FATHOM_API void fathom_constraint_free(fathom_constraint *c);

/* ---- Metrics ---- */

/* OpenMetrics text for a scraper. */
#define FATHOM_METRICS_OPENMETRICS 1

/* Counters, every effective option with its origin (`config`), the memory plan (`plan`). */
#define FATHOM_METRICS_JSON 2

/* The last 4096 steps, JSON; also after a failure. */
#define FATHOM_METRICS_STEPS 3

/* A copy of an engine's counters. Zero it, set struct_size. */
typedef struct fathom_engine_stats {
  /* Set by the caller. */
  size_t struct_size;
  /* Given an id. */
  uint64_t requests_accepted;
  /* Ended by themselves. */
  uint64_t requests_finished;
  /* Refused at submit. */
  uint64_t requests_refused;
  /* Ended by cancel, deadline or shutdown. */
  uint64_t requests_cancelled;
  /* Ended by an error. */
  uint64_t requests_failed;
  /* Prompt positions computed. */
  uint64_t tokens_prefilled;
  /* Prompt positions found in the prefix cache. */
  uint64_t tokens_cached;
  /* Tokens generated. */
  uint64_t tokens_decoded;
  /* Drafts verified. */
  uint64_t tokens_drafted;
  /* Drafts accepted. */
  uint64_t tokens_accepted;
  /* Steps of the engine. */
  uint64_t steps;
  /* Requests that gave up their memory for a while. */
  uint64_t preemptions;
  /* Times a request waited for its reader. */
  uint64_t paused_for_reader;
  /* Requests that are being computed. */
  uint32_t running;
  /* Requests that wait to be. */
  uint32_t waiting;
  /* Requests that wait for their reader. */
  uint32_t paused;
  /* Blocks of paged state in use. */
  uint32_t kv_blocks_used;
  /* Blocks of paged state. */
  uint32_t kv_blocks_total;
  /* Zero. */
  uint32_t reserved0;
} fathom_engine_stats;

/*
 * Copies the counters into `out`, as far as its struct_size reaches. Shares no lock with the engine's step; never
 * blocks, any thread.
 */
FATHOM_API
fathom_status fathom_engine_stats_get(const fathom_engine *e,
                                      struct fathom_engine_stats *out);

/* Everything the engine says of itself, in FATHOM_METRICS_*. Free with fathom_buf_free. Never blocks, any thread. */
FATHOM_API
FATHOM_NODISCARD
fathom_status fathom_engine_metrics(const fathom_engine *e,
                                    int32_t format,
                                    fathom_buf **out,
                                    fathom_error **err);

/*
 * Records the next `max_steps` steps (0 = 20, at most 1000) into memory. FATHOM_ERR_STATE while a profile is being
 * recorded. Never blocks, any thread.
 */
FATHOM_API
fathom_status fathom_profile_start(fathom_engine *e,
                                   uint32_t max_steps,
                                   fathom_error **err);

/*
 * Ends a profile, which need not be full, and gives it as JSON trace events: steps with their parts, and counters.
 * FATHOM_ERR_STATE when none is being recorded. Free with fathom_buf_free. Any thread.
 */
FATHOM_API
FATHOM_NODISCARD
fathom_status fathom_profile_stop(fathom_engine *e,
                                  fathom_buf **out_trace,
                                  fathom_error **err);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* FATHOM_H */
