/* Classifies a handwritten digit with the network of examples/digits, exported by
 *
 *     vta compile examples/digits/digits.onnx --config tiny -o build/digits.vta
 *     vta export build/digits.vta --name digits -o build/digits
 *
 * Returns the digit, or -1 if the machine did not compute it.
 */
#include "digits.h"
#include "port.h"

/* 8 x 8 pixels from 0 to 16: a three. */
static const uint8_t pixels[DIGITS_IMAGE_SIZE] = {
    0, 1, 7, 13, 16, 13, 0, 0,
    0, 7, 16, 16, 16, 14, 0, 0,
    0, 1, 7, 16, 10, 1, 0, 0,
    0, 1, 16, 15, 0, 0, 0, 0,
    0, 0, 8, 15, 14, 3, 0, 0,
    0, 0, 0, 1, 14, 15, 3, 0,
    0, 0, 1, 5, 13, 16, 7, 0,
    0, 0, 8, 15, 10, 6, 0, 0,
};

int main(void)
{
    static float image[DIGITS_IMAGE_SIZE], logits[DIGITS_LOGITS_SIZE];
    const vta_port *port = board_port();
    const char *wrong;
    int digit = 0;
    for (int i = 0; i < DIGITS_IMAGE_SIZE; i++)
        image[i] = (float)pixels[i] / 16;
    if (digits_init(port, &wrong) != VTA_DONE || digits_run(port, image, logits) != VTA_DONE)
        return -1;
    for (int i = 1; i < DIGITS_LOGITS_SIZE; i++)
        if (logits[i] > logits[digit])
            digit = i;
    return digit;
}
