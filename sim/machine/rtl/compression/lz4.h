// The part of LZ4's interface that Verilator's writer of FST files uses, so that waves need no
// library. Blocks are in the LZ4 block format; the search for matches is greedy.

#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

inline int LZ4_compressBound(int size) { return size + size / 255 + 16; }

// Compresses `size` bytes and returns the number of bytes written to `target`, or 0 if `capacity` is
// less than the bound.
inline int LZ4_compress_default(const char* source, char* target, int size, int capacity) {
    constexpr int SHORTEST = 4;        // match
    constexpr int LAST_LITERALS = 5;   // that end a block
    constexpr int LAST_MATCH = 12;     // bytes between the begin of the last match and the end
    constexpr int FARTHEST = 65535;    // distance of a match
    constexpr unsigned NIBBLE = 15, BYTE = 255, HASH_BITS = 14;
    if (capacity < LZ4_compressBound(size)) return 0;
    const auto word_at = [&](int at) {
        uint32_t word;
        std::memcpy(&word, source + at, sizeof word);
        return word;
    };
    char* out = target;
    const auto put_rest = [&](unsigned length) {
        if (length < NIBBLE) return;
        for (length -= NIBBLE; length >= BYTE; length -= BYTE) *out++ = char(BYTE);
        *out++ = char(length);
    };
    const auto nibble = [](unsigned length) { return length < NIBBLE ? length : NIBBLE; };
    const auto put = [&](int begin, int end, int distance, int length) {
        const unsigned literals = unsigned(end - begin);
        const unsigned beyond = distance ? unsigned(length - SHORTEST) : 0;
        *out++ = char(nibble(literals) << 4 | nibble(beyond));
        put_rest(literals);
        std::memcpy(out, source + begin, literals);
        out += literals;
        if (!distance) return;
        *out++ = char(distance);
        *out++ = char(distance >> 8);
        put_rest(beyond);
    };
    std::vector<int> places(1u << HASH_BITS, -1);
    int begin = 0;
    for (int at = 0; at + LAST_MATCH <= size;) {
        const uint32_t word = word_at(at);
        int& place = places[word * 2654435761u >> (32 - HASH_BITS)];
        const int earlier = place;
        place = at;
        if (earlier < 0 || at - earlier > FARTHEST || word_at(earlier) != word) {
            at++;
            continue;
        }
        int length = SHORTEST;
        while (at + length < size - LAST_LITERALS && source[earlier + length] == source[at + length])
            length++;
        put(begin, at, at - earlier, length);
        begin = at += length;
    }
    put(begin, size, 0, 0);
    return int(out - target);
}
