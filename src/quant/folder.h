/* The files of a quantised folder beside the weights: config.json, the shard
 * index, the tokenizer's files, generation_config.json. Used by quantize.c. */
#ifndef QN_QUANT_FOLDER_H
#define QN_QUANT_FOLDER_H

#include "quant/outputs.h"

/* QN_E_ARGUMENT when writing `output` would touch what `input` is read from. */
qn_status qn_folder_check_paths(const char *input, const char *output, qn_error *error);

/* QN_E_IO when the file system of `path` has less than `bytes` free; both figures are named. */
qn_status qn_folder_check_space(const char *path, uint64_t bytes, qn_error *error);

/* "FOLDER/NAME"; NULL without memory. */
char *qn_folder_path(qn_ctx *ctx, const char *folder, const char *name);

/* "model.safetensors", or "model-00001-of-00003.safetensors". */
void qn_folder_shard_name(const qn_outputs *outputs, int32_t shard, char *name, size_t capacity);

/* Write the tokenizer's files: copies of a folder's, or an export of a GGUF file's. */
qn_status qn_folder_write_tokenizer(qn_ctx *ctx, const char *input, const qn_checkpoint *checkpoint,
                                    const char *folder, qn_error *error);

/* Write the index (of more than one shard) and config.json: the last files of a folder. kv: the scheme of the
 * codebooks that the folder has; NULL: none. */
qn_status qn_folder_write_config(const qn_checkpoint *checkpoint, const qn_outputs *outputs, const char *kv,
                                 const char *folder, qn_error *error);

#endif
