/* Answers the runner of MLPerf Tiny, as `vta serve --mlperf-tiny` does; times are those of the whole
 * board.
 *
 * A command is text up to `%`; its answer is lines of text, the last of which is m-ready. */
#include "addresses.h"
#include "board.h"
#include "network_tensors.h"
#include "task.h"

#define WORDS 4
#define INPUT_BYTES (sizeof sent.bytes)
/* Time after which an empty line keeps the runner waiting. */
#define SILENT_CYCLES (2ull * CLOCK_HZ)
_Static_assert(CLOCK_HZ % 1000000 == 0, "microseconds are whole cycles");

/* The input as the runner has sent it, of which `loaded` bytes out of `expected` have arrived. */
static union {
    uint8_t bytes[TASK_INPUTS * (TASK_SENDS_FLOATS ? sizeof(float) : 1)];
    float floats[TASK_SENDS_FLOATS ? TASK_INPUTS : 1];
} sent;
static uint32_t expected, loaded;
static int is_ready, has_results;
static float results[TASK_SENDS_FLOATS ? 1 : TASK_OUTPUTS];

static int equal(const char *a, const char *b)
{
    while (*a && *a == *b)
        a++, b++;
    return *a == *b;
}

static void send_number(uint64_t value)
{
    char digits[20];
    uint32_t count = 0;
    do
        digits[count++] = (char)('0' + value % 10);
    while (value /= 10);
    while (count)
        send((uint8_t)digits[--count]);
}

/* Three decimals of the exact value, rounded to nearest, ties to even. */
static void send_float(float value)
{
    const union {
        float value;
        uint32_t bits;
    } as = {value};
    const uint32_t exponent = as.bits >> 23 & 0xFF;
    const int shift = 150 - (exponent ? (int)exponent : 1);
    uint64_t scaled = ((as.bits & 0x7FFFFF) | (exponent ? 0x800000u : 0)) * 1000ull;
    if (value != value) {
        send_text("nan");
        return;
    }
    if (as.bits >> 31)
        send('-');
    /* Larger numbers than 2^53 are no results of 8-bit networks. */
    if (exponent > 202) {
        send_text("inf");
        return;
    }
    if (shift <= 0) {
        scaled <<= -shift;
    } else if (shift > 63) {
        scaled = 0;
    } else {
        const uint64_t rest = scaled & ((1ull << shift) - 1), half = 1ull << (shift - 1);
        scaled >>= shift;
        scaled += rest > half || (rest == half && scaled % 2);
    }
    send_number(scaled / 1000);
    send('.');
    for (uint32_t unit = 100; unit; unit /= 10)
        send((uint8_t)('0' + scaled / unit % 10));
}

static void send_line(const char *before, uint64_t number, const char *after)
{
    send_text(before);
    send_number(number);
    send_text(after);
    send_text("\r\n");
}

static void send_error(const char *text, const char *word)
{
    send_text("e-[");
    send_text(text);
    for (; *word; word++)
        send(*word >= ' ' && *word <= '~' ? (uint8_t)*word : '?');
    send_text("]\r\n");
}

/* Parses `word` into `number`; returns 0 after an error message. */
static int parse(const char *word, uint32_t least, uint32_t most, const char *what,
                 uint32_t *number)
{
    uint32_t value = 0;
    const char *next = word;
    for (; *next >= '0' && *next <= '9'; next++)
        value = value > most ? value : value * 10 + (uint32_t)(*next - '0');
    *number = value;
    if (next != word && !*next && value >= least && value <= most)
        return 1;
    send_text("e-[The ");
    send_text(what);
    send_text(" is from ");
    send_number(least);
    send_text(" to ");
    send_number(most);
    send_text(", not ");
    send_text(word);
    send_text("]\r\n");
    return 0;
}

static int digit(char character)
{
    const int lower = character | 0x20;
    if (character >= '0' && character <= '9')
        return character - '0';
    return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

static void append(const char *digits)
{
    uint32_t count = 0;
    while (digit(digits[count]) >= 0)
        count++;
    if (digits[count] || count % 2) {
        send_error("Not pairs of hex digits: ", digits);
        return;
    }
    if (loaded == expected) {
        send_error("The input has all its bytes; db load begins another one", "");
        return;
    }
    for (uint32_t i = 0; i < count && loaded < expected; i += 2)
        sent.bytes[loaded++] = (uint8_t)(digit(digits[i]) << 4 | digit(digits[i + 1]));
    if (loaded == expected)
        send_text("m-load-done\r\n");
}

static void print_input(void)
{
    for (uint32_t i = 0; i < loaded; i++) {
        send_text(i % TASK_BYTES_PER_LINE ? "-" : "m-buffer-");
        send((uint8_t)"0123456789abcdef"[sent.bytes[i] >> 4]);
        send((uint8_t)"0123456789abcdef"[sent.bytes[i] & 15]);
        if (i % TASK_BYTES_PER_LINE == TASK_BYTES_PER_LINE - 1 || i == loaded - 1)
            send_text("\r\n");
    }
}

static void input_command(char *const *words)
{
    if (!*words[0] || (equal(words[0], "load") && !*words[1])) {
        send_error("db needs a subcommand, and db load a number of bytes", "");
    } else if (equal(words[0], "load")) {
        uint32_t size;
        if (!parse(words[1], 1, INPUT_BYTES, "number of bytes", &size))
            return;
        expected = size;
        loaded = 0;
        send_line("m-[Expecting ", size, " bytes]");
    } else if (equal(words[0], "print")) {
        print_input();
    } else {
        append(words[0]);
    }
}

static float output(uint32_t i)
{
    const uint8_t byte = outputs[0].bytes[i];
    return (float)((TASK_OUTPUT_LOW ? (int8_t)byte : byte) - TASK_OUTPUT_ZERO) * TASK_OUTPUT_SCALE;
}

/* The outputs, or of the autoencoder the mean square of its error. */
static void compute_results(void)
{
    float sum = 0;
    for (uint32_t i = 0; i < TASK_OUTPUTS; i++) {
        if (TASK_SENDS_FLOATS) {
            const float difference = output(i) - sent.floats[i];
            sum += difference * difference;
        } else {
            results[i] = output(i);
        }
    }
    if (TASK_SENDS_FLOATS)
        results[0] = sum / TASK_OUTPUTS;
    has_results = 1;
}

static void send_results(void)
{
    if (!has_results) {
        send_error("There are no results before the first inference", "");
        return;
    }
    send_text("m-results-[");
    for (uint32_t i = 0; i < sizeof results / sizeof *results; i++) {
        if (i)
            send(',');
        send_float(results[i]);
    }
    send_text("]\r\n");
}

static void quantize_input(void)
{
    if (TASK_SENDS_FLOATS)
        vta_quantize_away(sent.floats, inputs[0].bytes, TASK_INPUTS, TASK_INPUT_SCALE,
                          TASK_INPUT_ZERO, TASK_INPUT_LOW);
    else
        for (uint32_t i = 0; i < TASK_INPUTS; i++)
            inputs[0].bytes[i] = sent.bytes[i] ^ TASK_FLIP;
}

/* Returns 0 after an error message. */
static int infer(const vta_port *port, uint32_t count)
{
    uint64_t since = cycles();
    for (; count; count--) {
        const vta_result result = run(port);
        if (result != VTA_DONE) {
            send_error(result == VTA_TIMEOUT ? "timeout" : "the machine has stopped at a fault", "");
            return 0;
        }
        if (cycles() - since > SILENT_CYCLES) {
            send_text("\r\n");
            since = cycles();
        }
    }
    return 1;
}

static void send_time(void) { send_line("m-lap-us-", cycles() / (CLOCK_HZ / 1000000), ""); }

static void infer_command(const vta_port *port, char *const *words)
{
    uint32_t count = 1, warmups = TASK_WARMUPS;
    if (*words[0] && !parse(words[0], 1, TASK_MOST_INFERENCES, "number of inferences", &count))
        return;
    if (*words[1] && !parse(words[1], 0, TASK_MOST_INFERENCES, "number of warm-ups", &warmups))
        return;
    if (loaded != INPUT_BYTES) {
        send_text("e-[" TASK_NAME " needs ");
        send_number(INPUT_BYTES);
        send_line(" bytes; ", loaded, " are loaded]");
        return;
    }
    if (!is_ready) {
        send_error("The network is not ready: see the message after the start", "");
        return;
    }
    quantize_input();
    send_line("m-warmup-start-", warmups, "");
    if (!infer(port, warmups))
        return;
    send_text("m-warmup-done\r\n");
    send_line("m-infer-start-", count, "");
    send_time();
    if (!infer(port, count))
        return;
    send_time();
    send_text("m-infer-done\r\n");
    compute_results();
    send_results();
}

static int is_space(char character)
{
    return character == ' ' || (character >= '\t' && character <= '\r');
}

static void answer(const vta_port *port, char *command)
{
    static char nothing[1];
    char *words[WORDS] = {nothing, nothing, nothing, nothing};
    uint32_t count = 0;
    for (char *next = command; *next;) {
        while (is_space(*next))
            *next++ = 0;
        if (*next && count < WORDS)
            words[count++] = next;
        while (*next && !is_space(*next))
            next++;
    }
    if (equal(words[0], "name"))
        send_text("m-name-dut-[amaranth-vta]\r\n");
    else if (equal(words[0], "profile"))
        send_text("m-profile-[" TASK_PROTOCOL "]\r\nm-model-[" TASK_NAME "]\r\n");
    else if (equal(words[0], "help"))
        send_text(TASK_HELP);
    else if (equal(words[0], "timestamp"))
        send_time();
    else if (equal(words[0], "db"))
        input_command(words + 1);
    else if (equal(words[0], "infer"))
        infer_command(port, words + 1);
    else if (equal(words[0], "results"))
        send_results();
    else if (*words[0])
        send_error("Unknown command: ", words[0]);
}

int main(void)
{
    static char command[TASK_MOST_CHARACTERS + 1];
    const vta_port *port = machine_port();
    const char *wrong = "";
    if (!load_data())
        send_error("the data of the network are not in the board's memory", "");
    else if (network_init(port, &wrong) != VTA_DONE)
        send_error("the machine differs in ", wrong);
    else
        is_ready = 1;
    send_text("m-init-done\r\nm-ready\r\n");
    for (uint32_t count = 0;;) {
        const char received = (char)receive(FOREVER);
        if (received != '%') {
            if (count < TASK_MOST_CHARACTERS)
                command[count] = received;
            count += count <= TASK_MOST_CHARACTERS;
            continue;
        }
        if (count > TASK_MOST_CHARACTERS) {
            send_line("e-[A command is longer than ", TASK_MOST_CHARACTERS, " characters]");
        } else {
            command[count] = 0;
            answer(port, command);
        }
        count = 0;
        send_text("m-ready\r\n");
    }
}
