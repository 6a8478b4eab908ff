/* quern tokenize, quern detokenize. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "ids.h"

static int print_ids(cli *c, const qn_tokenizer *tokenizer, const char *text, size_t bytes)
{
    int32_t *ids = NULL;
    size_t count = 0;
    uint32_t flags = c->value[OPT_SPECIAL].set ? QN_ENCODE_ADD_SPECIAL | QN_ENCODE_PARSE_SPECIAL : 0;
    int code = cli_tokenize(c, tokenizer, text, bytes, flags, &ids, &count);
    for (size_t i = 0; i < count && !code; i++)
        printf("%s%d", i ? " " : "", ids[i]);
    if (!code)
        fputc('\n', stdout);
    free(ids);
    return code;
}

int verb_tokenize(cli *c)
{
    char *text = NULL;
    size_t bytes = 0;
    qn_model *model = NULL;
    int code = cli_read_text(c, &text, &bytes, 0);
    if (!code)
        code = cli_open_model_for_text(c, c->operands[0], &model);
    if (!code && !c->value[OPT_LINES].set)
        code = print_ids(c, qn_model_tokenizer(model), text, bytes);
    for (size_t at = 0; !code && c->value[OPT_LINES].set && at < bytes;) {
        const char *end = memchr(text + at, '\n', bytes - at);
        size_t n = end ? (size_t)(end - text) - at : bytes - at;
        code = cli_interrupted() ? EXIT_SIGNAL : print_ids(c, qn_model_tokenizer(model), text + at, n);
        at += n + 1;
    }
    qn_model_close(model);
    free(text);
    return code;
}

int cli_parse_ids(cli *c, const char *text, size_t bytes, int32_t **ids, size_t *count)
{
    *count = 0;
    *ids = cli_alloc(bytes / 2 + 2, sizeof **ids);
    if (!*ids)
        return cli_memory(c, "the token ids");
    for (size_t at = 0; at < bytes;) {
        if (strchr(" ,\t\r\n", text[at]) && text[at]) {
            at++;
            continue;
        }
        int64_t id = 0;
        size_t start = at;
        while (at < bytes && text[at] >= '0' && text[at] <= '9' && id <= INT32_MAX)
            id = id * 10 + (text[at++] - '0');
        if (at == start || id > INT32_MAX || (at < bytes && (!text[at] || !strchr(" ,\t\r\n", text[at]))))
            return cli_fail(c, EXIT_USAGE, "'%.20s' is not a token id", text + start);
        (*ids)[(*count)++] = (int32_t)id;
    }
    return 0;
}

static int print_text(cli *c, const qn_tokenizer *tokenizer, const char *list, size_t bytes)
{
    qn_error error = {0};
    int32_t *ids = NULL;
    size_t count = 0, length = 0;
    char *text = NULL;
    int code = cli_parse_ids(c, list, bytes, &ids, &count);
    size_t room = 64;
    for (size_t i = 0; i < count && !code; i++) {
        size_t n = 0;
        if (!qn_tokenizer_piece(tokenizer, ids[i], &n))
            code = cli_fail(c, EXIT_USAGE, "the vocabulary has no token %d", ids[i]);
        room += n + 8;
    }
    if (!code && !(text = malloc(room)))
        code = cli_memory(c, "the text");
    if (!code)
        code = cli_check(
            c, qn_tokenizer_decode(tokenizer, ids, count, !c->value[OPT_SPECIAL].set, text, room, &length, &error),
            &error, PHASE_USAGE);
    if (!code)
        fwrite(text, 1, length, stdout);
    free(text);
    free(ids);
    return code;
}

/* The ids as text: operands, --ids, --file or stdin. */
static int read_ids_text(cli *c, char **list, size_t *bytes)
{
    *list = NULL;
    *bytes = 0;
    if (c->operand_count < 2 && !c->value[OPT_IDS].set)
        return cli_read_file(c, c->value[OPT_FILE].set ? c->value[OPT_FILE].s : "-", list, bytes);
    if (c->value[OPT_FILE].set || (c->value[OPT_IDS].set && c->operand_count > 1))
        return cli_fail(c, EXIT_USAGE, "ids are given twice");
    size_t room = 1;
    for (int i = 1; i < c->operand_count; i++)
        room += strlen(c->operands[i]) + 1;
    if (c->value[OPT_IDS].set)
        room += strlen(c->value[OPT_IDS].s);
    *list = calloc(room, 1);
    if (!*list)
        return cli_memory(c, "the token ids");
    for (int i = 1; i < c->operand_count; i++) {
        strcat(*list, c->operands[i]);
        strcat(*list, " ");
    }
    if (c->value[OPT_IDS].set)
        strcat(*list, c->value[OPT_IDS].s);
    *bytes = strlen(*list);
    return 0;
}

int verb_detokenize(cli *c)
{
    char *list = NULL;
    size_t bytes = 0;
    qn_model *model = NULL;
    int code = read_ids_text(c, &list, &bytes);
    if (!code)
        code = cli_open_model_for_text(c, c->operands[0], &model);
    const qn_tokenizer *tokenizer = code ? NULL : qn_model_tokenizer(model);
    if (!code && !tokenizer)
        code = cli_fail(c, EXIT_INPUT, "%s: the model has no tokenizer", c->operands[0]);
    if (!code && !c->value[OPT_LINES].set)
        code = print_text(c, tokenizer, list, bytes);
    for (size_t at = 0; !code && c->value[OPT_LINES].set && at < bytes;) {
        const char *end = memchr(list + at, '\n', bytes - at);
        size_t n = end ? (size_t)(end - list) - at : bytes - at;
        code = print_text(c, tokenizer, list + at, n);
        if (!code)
            fputc('\n', stdout);
        at += n + 1;
    }
    qn_model_close(model);
    free(list);
    return code;
}
