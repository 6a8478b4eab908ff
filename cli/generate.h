/* Generating text: streaming that never splits a character nor shows the
 * beginning of a stop text, and the loop over session and sampler. */
#ifndef QN_CLI_GENERATE_H
#define QN_CLI_GENERATE_H

#include "cli.h"

typedef struct cli_stream {
    FILE *out;
    FILE *copy; /* gets the same text; NULL: none */
    const char *const *stops;
    int stop_count;
    char *held; /* bytes not written yet */
    size_t used, room;
    int stopped; /* a stop text was met; nothing more is written */
    int live;    /* flush after each write */
} cli_stream;

/* Append bytes of a token and write what may be written. 0, or EXIT_MEMORY with its sentence. */
int cli_stream_push(cli *c, cli_stream *stream, const char *bytes, size_t count);
/* Write the rest (an unfinished character becomes U+FFFD) and free. */
void cli_stream_end(cli_stream *stream);

typedef struct cli_generation {
    int32_t prompt_tokens, generated;                     /* generated: tokens of the reply, without an end token */
    int32_t decoded;                                      /* single-token evaluations in decode_seconds */
    double prompt_seconds, decode_seconds, first_seconds; /* first: from the start to the first token */
    const char *end; /* "end of text", "stop text", "length", "context full", "interrupted" */
} cli_generation;

/* Evaluate the prompt's ids (after what the session holds) and generate at most
 * `predict` tokens (-1: no limit) into the stream. history, when not NULL, has room for the session's
 * capacity: evaluated ids are added at history[*length]. */
int cli_generate(cli *c, qn_model *model, qn_session *session, qn_sampler *sampler, const int32_t *ids, size_t count,
                 int64_t predict, cli_stream *stream, int32_t *history, size_t *length, cli_generation *result);

/* A sampler from the verb's options; the seed used is noted on stderr unless sampling is greedy. */
int cli_make_sampler(cli *c, const qn_model *model, qn_sampler **sampler);

#endif
