#!/bin/sh
# Make first corpora of small valid files: seeds.sh FOLDER gives FOLDER/{safetensors,config,gguf,tokenizer,template}.
set -eu
out=${1:?usage: seeds.sh FOLDER}
mkdir -p "$out/safetensors" "$out/config" "$out/gguf" "$out/tokenizer" "$out/template"
header='{"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[3],"data_offsets":[4,7]}}'
length=$(printf %s "$header" | wc -c)
{ printf "\\$(printf %o "$length")\\0\\0\\0\\0\\0\\0\\0"; printf '%sabcdefg' "$header"; } > "$out/safetensors/two"
base='"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_size":32,"num_hidden_layers":1,"num_attention_heads":2,"num_key_value_heads":1,"head_dim":16,"intermediate_size":64,"vocab_size":10'
weights='"num_bits":8,"type":"float","symmetric":true,"strategy":"channel","dynamic":false'
inputs='"num_bits":8,"type":"float","symmetric":true,"strategy":"token","dynamic":true'
printf '{%s}' "$base" > "$out/config/plain"
printf '{%s,"quantization_config":{"quant_method":"fp8","fmt":"e4m3","activation_scheme":"dynamic","weight_block_size":[128,128],"modules_to_not_convert":["lm_head"]}}' "$base" > "$out/config/fp8-block"
printf '{%s,"quantization_config":{"quant_method":"compressed-tensors","format":"float-quantized","quantization_status":"compressed","config_groups":{"group_0":{"targets":["Linear"],"weights":{%s},"input_activations":{%s}}},"ignore":["lm_head","re:.*q_proj"]}}' "$base" "$weights" "$inputs" > "$out/config/fp8"
printf '{%s,"quantization_config":{"quant_method":"fp8","activation_scheme":"static","ignored_layers":["lm_head"]}}' "$base" > "$out/config/fp8-static"
printf '{%s,"quantization_config":{"quant_method":"modelopt","quant_algo":"MIXED_PRECISION","quantized_layers":{"model.layers.0.mlp.up_proj":{"quant_algo":"NVFP4","group_size":16},"lm_head":{"quant_algo":"FP8"}},"ignore":["model.layers.1*"]}}' "$base" > "$out/config/mixed"
printf '{"producer":{"name":"modelopt"},"quantization":{"quant_algo":"NVFP4","kv_cache_quant_algo":"FP8","group_size":16,"exclude_modules":["lm_head","*q_proj"]}}' > "$out/config/modelopt"
printf '{%s,"rope_scaling":{"rope_type":"llama3","factor":8,"low_freq_factor":1,"high_freq_factor":4,"original_max_position_embeddings":8192}}' "$base" > "$out/config/llama3"
printf '{%s,"rope_parameters":{"rope_type":"yarn","rope_theta":1e6,"factor":4,"beta_fast":32,"beta_slow":1,"mscale":0.7,"mscale_all_dim":1}}' "$base" > "$out/config/yarn"
printf '{%s,"rope_scaling":{"type":"longrope","short_factor":[1,1,1,1,1,1,1,2],"long_factor":[1,1,2,2,3,3,4,4],"attention_factor":1.1}}' "$base" > "$out/config/longrope"
printf '{"metadata":{"total_size":8},"weight_map":{"a.weight":"model-00001-of-00001.safetensors"}}' > "$out/config/index"
printf 'GGUF\003\0\0\0\0\0\0\0\0\0\0\0\001\0\0\0\0\0\0\0\024\0\0\0\0\0\0\0general.architecture\010\0\0\0\005\0\0\0\0\0\0\0llama' > "$out/gguf/small"
cp "$(dirname "$0")/../text/small.json" "$out/tokenizer/small"
mark=$(printf '\342\226\201')
printf '{"model":{"type":"BPE","unk_token":"<u>","byte_fallback":true,"vocab":{"<u>":0,"a":1,"%s":2,"%sa":3,"<0x62>":4},"merges":["%s a"]},"pre_tokenizer":{"type":"Metaspace","replacement":"%s","prepend_scheme":"first"},"decoder":{"type":"Metaspace","replacement":"%s"}}' "$mark" "$mark" "$mark" "$mark" "$mark" > "$out/tokenizer/marks"
printf '{"model":{"type":"BPE","vocab":{"a":0,"%s":1,"%sa":2},"merges":[["%s","a"]]},"normalizer":{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"%s"},{"type":"Replace","pattern":{"String":" "},"content":"%s"}]},"added_tokens":[{"id":3,"content":"a a","normalized":true}],"decoder":{"type":"Sequence","decoders":[{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]}}' "$mark" "$mark" "$mark" "$mark" "$mark" > "$out/tokenizer/prepend"
printf '{"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]},"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false}}' > "$out/tokenizer/tiny"
printf '{%% for m in messages %%}<|im_start|>{{ m.role }}\n{{ m["content"] | trim }}<|im_end|>\n{%% endfor %%}{%% if add_generation_prompt %%}assistant{%% endif %%}' > "$out/template/chatml"
printf '{%%- set ns = namespace(n=0) -%%}{%% macro f(x, y=1) %%}{{ x ~ y }}{%% endmacro %%}{%% for i in range(3) if i != 1 %%}{{ f(i)[:2] }}{%% set ns.n = ns.n + i %%}{%% else %%}none{%% endfor %%}{{ ns.n is divisibleby 2 }}' > "$out/template/features"
