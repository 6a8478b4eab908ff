/* Chat templates. */
#include <quern/text.h>

#include "base/error.h"

qn_status qn_chat_render(const qn_tokenizer *tokenizer, const char *text_template,
                         const qn_chat_message *messages, size_t message_count, int add_generation_prompt,
                         char *text, size_t capacity, size_t *bytes, qn_error *error)
{
    (void)tokenizer;
    (void)text_template;
    (void)messages;
    (void)message_count;
    (void)add_generation_prompt;
    (void)text;
    (void)capacity;
    (void)bytes;
    QN_FAIL(error, QN_E_UNSUPPORTED, "chat templates are not served yet");
}
