/* Prints size and offset of every field of every struct, as tests/abi/layout.json has them. */
#include <fathom.h>
#include <stdio.h>

#define STRUCT(type) printf("%s  \"%s\": {\n    \"\": [0, %zu]", first++ ? "\n  },\n" : "", #type, sizeof(type))
#define FIELD(type, field) \
  printf(",\n    \"%s\": [%zu, %zu]", #field, offsetof(type, field), sizeof(((type *)0)->field))

int main(void) {
  int first = 0;
  printf("{\n");

  STRUCT(fathom_str);
  FIELD(fathom_str, ptr);
  FIELD(fathom_str, len);

  STRUCT(fathom_engine_options);
  FIELD(fathom_engine_options, struct_size);
  FIELD(fathom_engine_options, model_path);
  FIELD(fathom_engine_options, device);
  FIELD(fathom_engine_options, kv_bytes);
  FIELD(fathom_engine_options, max_context);
  FIELD(fathom_engine_options, max_running);
  FIELD(fathom_engine_options, max_queued);
  FIELD(fathom_engine_options, cpu_threads);
  FIELD(fathom_engine_options, flags);
  FIELD(fathom_engine_options, reserved0);
  FIELD(fathom_engine_options, progress);
  FIELD(fathom_engine_options, progress_data);
  FIELD(fathom_engine_options, tuning_json);

  STRUCT(fathom_engine_info);
  FIELD(fathom_engine_info, struct_size);
  FIELD(fathom_engine_info, vocab_size);
  FIELD(fathom_engine_info, max_context);
  FIELD(fathom_engine_info, max_running);
  FIELD(fathom_engine_info, device_count);
  FIELD(fathom_engine_info, weight_bytes);
  FIELD(fathom_engine_info, kv_bytes);
  FIELD(fathom_engine_info, kv_blocks);
  FIELD(fathom_engine_info, model_name);

  STRUCT(fathom_submit_options);
  FIELD(fathom_submit_options, struct_size);
  FIELD(fathom_submit_options, tag);
  FIELD(fathom_submit_options, priority);
  FIELD(fathom_submit_options, flags);
  FIELD(fathom_submit_options, deadline_ms);
  FIELD(fathom_submit_options, max_unread_tokens);
  FIELD(fathom_submit_options, max_tokens);
  FIELD(fathom_submit_options, temperature);
  FIELD(fathom_submit_options, top_p);
  FIELD(fathom_submit_options, seed);
  FIELD(fathom_submit_options, logprobs);
  FIELD(fathom_submit_options, stop_token_count);
  FIELD(fathom_submit_options, stop_tokens);
  FIELD(fathom_submit_options, constraint);
  FIELD(fathom_submit_options, params_json);

  STRUCT(fathom_queue_options);
  FIELD(fathom_queue_options, struct_size);
  FIELD(fathom_queue_options, flags);
  FIELD(fathom_queue_options, wake_interval_us);

  STRUCT(fathom_usage);
  FIELD(fathom_usage, prompt_tokens);
  FIELD(fathom_usage, cached_tokens);
  FIELD(fathom_usage, completion_tokens);
  FIELD(fathom_usage, reasoning_tokens);
  FIELD(fathom_usage, drafted_tokens);
  FIELD(fathom_usage, accepted_tokens);
  FIELD(fathom_usage, queued_us);
  FIELD(fathom_usage, prefill_us);
  FIELD(fathom_usage, decode_us);

  STRUCT(fathom_event);
  FIELD(fathom_event, request);
  FIELD(fathom_event, tag);
  FIELD(fathom_event, kind);
  FIELD(fathom_event, finish);
  FIELD(fathom_event, tokens);
  FIELD(fathom_event, logprobs);
  FIELD(fathom_event, token_count);
  FIELD(fathom_event, name);
  FIELD(fathom_event, data);
  FIELD(fathom_event, error);
  FIELD(fathom_event, usage);
  FIELD(fathom_event, top_tokens);
  FIELD(fathom_event, top_logprobs);
  FIELD(fathom_event, top_count);
  FIELD(fathom_event, choice);
  FIELD(fathom_event, detail);

  STRUCT(fathom_recipe_options);
  FIELD(fathom_recipe_options, struct_size);
  FIELD(fathom_recipe_options, tokenizer_path);
  FIELD(fathom_recipe_options, aliases_json);
  FIELD(fathom_recipe_options, max_context);
  FIELD(fathom_recipe_options, flags);
  FIELD(fathom_recipe_options, max_images);
  FIELD(fathom_recipe_options, max_image_concurrency);
  FIELD(fathom_recipe_options, max_image_bytes);
  FIELD(fathom_recipe_options, max_image_total_bytes);
  FIELD(fathom_recipe_options, max_image_pixels);
  FIELD(fathom_recipe_options, options_json);

  STRUCT(fathom_prepared_info);
  FIELD(fathom_prepared_info, struct_size);
  FIELD(fathom_prepared_info, model);
  FIELD(fathom_prepared_info, protocol);
  FIELD(fathom_prepared_info, stream);
  FIELD(fathom_prepared_info, token_count);
  FIELD(fathom_prepared_info, image_count);
  FIELD(fathom_prepared_info, pending_images);
  FIELD(fathom_prepared_info, max_tokens);
  FIELD(fathom_prepared_info, temperature);
  FIELD(fathom_prepared_info, top_p);
  FIELD(fathom_prepared_info, constraint_kind);
  FIELD(fathom_prepared_info, reserved0);

  STRUCT(fathom_range);
  FIELD(fathom_range, start);
  FIELD(fathom_range, end);

  STRUCT(fathom_parser_start_info);
  FIELD(fathom_parser_start_info, struct_size);
  FIELD(fathom_parser_start_info, prompt_tokens);
  FIELD(fathom_parser_start_info, cached_tokens);
  FIELD(fathom_parser_start_info, created_unix_s);
  FIELD(fathom_parser_start_info, response_id);
  FIELD(fathom_parser_start_info, system_fingerprint);
  FIELD(fathom_parser_start_info, model);
  FIELD(fathom_parser_start_info, choice);
  FIELD(fathom_parser_start_info, reserved0);

  STRUCT(fathom_chunk);
  FIELD(fathom_chunk, struct_size);
  FIELD(fathom_chunk, tokens);
  FIELD(fathom_chunk, token_count);
  FIELD(fathom_chunk, text);
  FIELD(fathom_chunk, text_tokens);
  FIELD(fathom_chunk, top_count);
  FIELD(fathom_chunk, logprobs);
  FIELD(fathom_chunk, top_tokens);
  FIELD(fathom_chunk, top_logprobs);

  STRUCT(fathom_image_source);
  FIELD(fathom_image_source, struct_size);
  FIELD(fathom_image_source, kind);
  FIELD(fathom_image_source, resolved);
  FIELD(fathom_image_source, url);
  FIELD(fathom_image_source, file_id);

  STRUCT(fathom_fetch_policy);
  FIELD(fathom_fetch_policy, struct_size);
  FIELD(fathom_fetch_policy, flags);
  FIELD(fathom_fetch_policy, max_redirects);
  FIELD(fathom_fetch_policy, timeout_ms);
  FIELD(fathom_fetch_policy, allow_hosts_json);
  FIELD(fathom_fetch_policy, decide);
  FIELD(fathom_fetch_policy, decide_data);

  STRUCT(fathom_call_options);
  FIELD(fathom_call_options, struct_size);
  FIELD(fathom_call_options, submit);
  FIELD(fathom_call_options, fetch);
  FIELD(fathom_call_options, response_id);
  FIELD(fathom_call_options, created_unix_s);
  FIELD(fathom_call_options, options_json);

  STRUCT(fathom_engine_stats);
  FIELD(fathom_engine_stats, struct_size);
  FIELD(fathom_engine_stats, requests_accepted);
  FIELD(fathom_engine_stats, requests_finished);
  FIELD(fathom_engine_stats, requests_refused);
  FIELD(fathom_engine_stats, requests_cancelled);
  FIELD(fathom_engine_stats, requests_failed);
  FIELD(fathom_engine_stats, tokens_prefilled);
  FIELD(fathom_engine_stats, tokens_cached);
  FIELD(fathom_engine_stats, tokens_decoded);
  FIELD(fathom_engine_stats, tokens_drafted);
  FIELD(fathom_engine_stats, tokens_accepted);
  FIELD(fathom_engine_stats, steps);
  FIELD(fathom_engine_stats, preemptions);
  FIELD(fathom_engine_stats, paused_for_reader);
  FIELD(fathom_engine_stats, running);
  FIELD(fathom_engine_stats, waiting);
  FIELD(fathom_engine_stats, paused);
  FIELD(fathom_engine_stats, kv_blocks_used);
  FIELD(fathom_engine_stats, kv_blocks_total);
  FIELD(fathom_engine_stats, reserved0);

  printf("\n  }\n}\n");
  return 0;
}
