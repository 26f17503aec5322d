// The part of zlib's interface that Verilator's writer of FST files uses, so that waves need no
// library. Streams consist of stored blocks (RFC 1950 and 1951): the writer keeps the data as they
// are instead, since they are smaller. Values of signals are compressed by lz4.h.

#pragma once

#include <cstdint>
#include <cstring>

using uLong = unsigned long;
using uLongf = uLong;
using Bytef = unsigned char;
constexpr int Z_OK = 0, Z_BUF_ERROR = -5;

constexpr uLong MOST_STORED = 65535;  // bytes per block

inline uLong compressBound(uLong size) { return size + 5 * (size / MOST_STORED + 1) + 6; }

// Writes `size` bytes as a stream to `target`, whose size is `*written` before and after.
inline int compress2(Bytef* target, uLongf* written, const Bytef* source, uLong size, int /*level*/) {
    if (*written < compressBound(size)) return Z_BUF_ERROR;
    Bytef* out = target;
    *out++ = 0x78;
    *out++ = 0x01;
    uLong at = 0;
    do {
        const uLong left = size - at, count = left < MOST_STORED ? left : MOST_STORED;
        *out++ = count == left;  // whether the block is the last
        for (const uLong word : {count, ~count}) {
            *out++ = Bytef(word);
            *out++ = Bytef(word >> 8);
        }
        if (count) std::memcpy(out, source + at, count);
        out += count;
        at += count;
    } while (at < size);
    uint32_t low = 1, high = 0;
    for (uLong i = 0; i < size; i++) {
        low = (low + source[i]) % 65521;
        high = (high + low) % 65521;
    }
    for (const uint32_t sum : {high, low}) {
        *out++ = Bytef(sum >> 8);
        *out++ = Bytef(sum);
    }
    *written = uLong(out - target);
    return Z_OK;
}
