/* Token ids written as text. */
#ifndef QN_CLI_IDS_H
#define QN_CLI_IDS_H

#include "cli.h"

/* Decimal ids with commas or white space between them; free(*ids), also after a failure. */
int cli_parse_ids(cli *c, const char *text, size_t bytes, int32_t **ids, size_t *count);

#endif
