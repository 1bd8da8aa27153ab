// SHA-256 (FIPS 180-4) of files: whether a library is the one that was written.
#pragma once

#include "common.h"

class Sha256 {
 public:
  void add(const void* data, size_t size) {
    const uint8_t* at = static_cast<const uint8_t*>(data);
    bytes_ += size;
    while (size > 0) {
      size_t part = size < sizeof block_ - used_ ? size : sizeof block_ - used_;
      memcpy(block_ + used_, at, part);
      used_ += part;
      at += part;
      size -= part;
      if (used_ == sizeof block_) mix();
    }
  }

  // Writes 64 hexadecimal digits and a zero; to be called once, at the end.
  void finish(char* digits) {
    uint64_t bits = 8 * bytes_;
    const uint8_t one = 0x80, zero = 0;
    add(&one, 1);
    while (used_ != 56) add(&zero, 1);
    for (int i = 0; i < 8; i++) block_[56 + i] = static_cast<uint8_t>(bits >> (56 - 8 * i));
    mix();
    for (int i = 0; i < 8; i++) sprintf(digits + 8 * i, "%08x", static_cast<unsigned>(state_[i]));
  }

 private:
  static uint32_t turned(uint32_t x, int by) { return x >> by | x << (32 - by); }

  // Takes the block into the state.
  void mix() {
    static const uint32_t kRound[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
        0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
        0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
        0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
        0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
        0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
        0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
    uint32_t w[64];
    for (int i = 0; i < 16; i++) {
      const uint8_t* b = block_ + 4 * i;
      w[i] = uint32_t{b[0]} << 24 | uint32_t{b[1]} << 16 | uint32_t{b[2]} << 8 | b[3];
    }
    for (int i = 16; i < 64; i++) {
      uint32_t x = w[i - 15], y = w[i - 2];
      w[i] = w[i - 16] + (turned(x, 7) ^ turned(x, 18) ^ x >> 3) + w[i - 7] +
             (turned(y, 17) ^ turned(y, 19) ^ y >> 10);
    }
    uint32_t a = state_[0], b = state_[1], c = state_[2], d = state_[3];
    uint32_t e = state_[4], f = state_[5], g = state_[6], h = state_[7];
    for (int i = 0; i < 64; i++) {
      uint32_t first = h + (turned(e, 6) ^ turned(e, 11) ^ turned(e, 25)) + ((e & f) ^ (~e & g)) +
                       kRound[i] + w[i];
      uint32_t second = (turned(a, 2) ^ turned(a, 13) ^ turned(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
      h = g, g = f, f = e, e = d + first;
      d = c, c = b, b = a, a = first + second;
    }
    const uint32_t mixed[8] = {a, b, c, d, e, f, g, h};
    for (int i = 0; i < 8; i++) state_[i] += mixed[i];
    used_ = 0;
  }

  uint32_t state_[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                        0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  uint8_t block_[64];
  size_t used_ = 0;
  uint64_t bytes_ = 0;
};

// Writes the SHA-256 of a file into `digits`, 64 of them and a zero, without holding it in memory.
inline void sha256_of_file(const char* path, char* digits) {
  static char part[1 << 16];
  FILE* file = fopen(path, "rb");
  if (file == nullptr) die(kModel, "cannot read %s: %s", path, strerror(errno));
  Sha256 sum;
  size_t size = 0;
  while ((size = fread(part, 1, sizeof part, file)) > 0) sum.add(part, size);
  if (ferror(file) != 0) die(kModel, "cannot read %s: %s", path, strerror(errno));
  fclose(file);
  sum.finish(digits);
}
