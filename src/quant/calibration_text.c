/* The calibration text: plain English of several kinds (a story, an explanation,
 * a letter, instructions, figures, a conversation), written for this purpose. */
#include "quant/calibrate.h"

static const char text[] =
    "The ferry left the island a little after six, when the light over the water was still grey. Marta stood at the "
    "rail with her collar turned up and watched the harbour shrink until the white houses were no bigger than grains "
    "of salt. She had lived there for nineteen years and had never once been seasick, but this morning her stomach "
    "turned over with every slow wave. \"You will be back before the apples are ripe,\" her brother had told her, and "
    "she had laughed, because nobody in the family had ever been able to tell when the apples would be ripe.\n\n"
    "A river is not simply water running downhill. It carries sand, clay and stones, and where it slows down it drops "
    "the heaviest of them first. Over hundreds of years a bend grows wider, because the current is faster on the "
    "outside, where it cuts the bank away, and slower on the inside, where it builds a beach. In the end the river "
    "breaks through the narrow neck of the loop and leaves behind a curved lake. Farmers have always known that the "
    "land beside such lakes is good: it floods in some winters, but the mud that stays behind feeds the grass.\n\n"
    "Dear Mr. Howard,\nThank you for your letter of 14 March. We have looked at the invoice again and you are right: "
    "the second line should read 36 boxes at 4.50 each, which makes 162.00, not 612.00. Two figures were exchanged "
    "when the order was copied. A corrected invoice is enclosed, and the difference of 450.00 will be returned to "
    "your account within ten days. Please accept our apologies for the trouble.\nYours sincerely, Ellen Park\n\n"
    "To make bread for four people you need 500 grams of flour, 320 millilitres of warm water, ten grams of salt and "
    "a spoonful of yeast. Mix the flour and the salt first. Stir the yeast into the water, wait five minutes, then "
    "pour it in and work the dough until it is smooth. Cover the bowl with a cloth and leave it somewhere warm. When "
    "it has doubled in size, fold it, shape it and let it rest again for half an hour. Bake it at 220 degrees until "
    "the crust is dark and the loaf sounds hollow when you tap it from below.\n\n"
    "Question: Why does the moon always show the same side to the Earth?\nAnswer: Because it turns around its own "
    "axis in exactly the time that it needs for one journey around the Earth. This is no accident. The Earth pulls "
    "the near side of the moon a little more strongly than the far side, and over millions of years this difference "
    "slowed the turning of the moon until the two periods agreed.\n\n"
    "The committee met on Tuesday and discussed three plans for the old railway station. The first would turn it into "
    "a library with a small museum; the second would keep the hall and build flats over the platforms; the third, and "
    "by far the cheapest, would pull everything down. After two hours the members voted seven to four for the "
    "library, on the condition that the roof could be repaired before the winter. According to the engineer, who had "
    "spent a week with a lamp and a hammer between the beams, this was possible but would not be easy.\n\n"
    "for (i = 0; i < n; i++) {\n    total += price[i] * count[i];\n}\nThis loop adds up what every line of the order "
    "costs. If the list is empty, the total stays at zero, and the program prints \"nothing to pay\" and stops.\n\n"
    "\"Is anybody there?\" the boy called into the dark cellar. Nothing answered but the dripping of the pipe. He "
    "counted the steps as he went down: nine, ten, eleven. On the twelfth his foot touched something soft that moved. "
    "He did not scream, although he wanted to. He held the candle lower, and two green eyes looked up at him, calm "
    "and a little offended. It was only the cat from next door, with four kittens, none of them bigger than his hand.";

const char *qn_calibration_text(void)
{
    return text;
}
