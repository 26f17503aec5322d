/* Classifies tensors that arrive as bytes.
 *
 * The host sends the bytes of all inputs, in the order of the network. The answer is four words and
 * the bytes of all outputs; numbers are little-endian:
 *
 *     result of the runtime, label, cycles from the last byte to the answer, cycles of the machine
 *
 * The label is the index of the largest score of the first image, in the first output. An input with
 * a pause of 20 ms is dropped. After power-up the firmware sends a line of text when it is ready. */
#include "addresses.h"
#include "board.h"
#include "network_tensors.h"

#define COUNT(table) (sizeof table / sizeof *table)

static void receive_inputs(void)
{
    uint32_t number = 0, count = 0;
    while (number < COUNT(inputs)) {
        const int byte = receive(number || count ? CLOCK_HZ / 50 : FOREVER);
        if (byte < 0) {
            number = count = 0;
            continue;
        }
        inputs[number].bytes[count++] = (uint8_t)byte;
        if (count == inputs[number].size) {
            number++;
            count = 0;
        }
    }
}

static uint32_t label(void)
{
    const score *scores = (const score *)outputs[0].bytes;
    uint32_t best = 0;
    for (uint32_t i = 1; i < SCORES; i++)
        if (scores[i] > scores[best])
            best = i;
    return best;
}

int main(void)
{
    const vta_port *port = machine_port();
    const char *text = "ready";
    const int has_data = load_data();
    const vta_result ready = has_data ? network_init(port, &text) : VTA_FAULT;
    send_text("amaranth-vta: ");
    send_text(has_data ? text : "no network");
    send_text("\r\n");
    for (;;) {
        receive_inputs();
        const uint64_t start = cycles(), machine_start = machine_cycles();
        const vta_result result = ready == VTA_DONE ? run(port) : ready;
        const uint32_t answer[] = {
            (uint32_t)result,
            label(),
            (uint32_t)(cycles() - start),
            (uint32_t)(machine_cycles() - machine_start),
        };
        send_bytes(answer, sizeof answer);
        for (uint32_t i = 0; i < COUNT(outputs); i++)
            send_bytes(outputs[i].bytes, outputs[i].size);
    }
}
