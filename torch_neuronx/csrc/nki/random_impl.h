// Random bits: xorwow. The streams are those of nki/isa/xorwow.py.
#pragma once

#include "nki/columns_impl.h"

namespace torch_neuronx::kernels::TN_ISA {

namespace {

constexpr int kWords = 6;

// W generators side by side: x, y, z, w, v of Marsaglia's xorwow, and its counter d.
struct Generators {
  vu word[kWords];
  TN_INLINE vu next() {
    const vu t = word[0] ^ (word[0] >> 2);
    const vu v = word[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) word[i] = word[i + 1];
    word[4] = (v ^ (v << 4)) ^ (t ^ (t << 1));
    word[5] += 362437u;
    return word[4] + word[5];
  }
};

constexpr int kSteps = 32;  // numbers of each generator between two trips to memory

// Writes `count` numbers of each row: row r takes turns among the `states` generators from lane
// r * states on.
template <class T>
TN_INLINE void store_numbers(const uint32_t (&numbers)[kSteps][W], nki::Rows<T> out, int64_t rows,
                             int states, int64_t first, int64_t count) {
  for (int64_t row = 0; row < rows; ++row) {
    T* const to = out[row] + first;
    const int lane = static_cast<int>(row) * states;
    for (int64_t i = 0; i < count; ++i) {
      to[i] = static_cast<T>(numbers[i / states][lane + static_cast<int>(i % states)]);
    }
  }
}

template <class T, int kStates>
void draw(nki::Rows<T> out, uint32_t* state, int64_t rows, int64_t size) {
  Generators made;
  uint32_t words[kWords][W] = {};
  const int64_t lanes = rows * kStates;
  for (int64_t lane = 0; lane < lanes; ++lane) {
    for (int i = 0; i < kWords; ++i) words[i][lane] = state[lane * kWords + i];
  }
  for (int i = 0; i < kWords; ++i) made.word[i] = *(const vu_any*)words[i];
  uint32_t numbers[kSteps][W];
  for (int64_t first = 0; first < size; first += kSteps * kStates) {
    const int64_t count = least(kSteps * kStates, size - first);
    const int64_t steps = (count + kStates - 1) / kStates;
    for (int64_t step = 0; step < steps; ++step) {
      const Generators before = made;
      *(vu_any*)numbers[step] = made.next();
      const int64_t active = count - step * kStates;
      if (active >= kStates) continue;
      // The last elements: only some of the states have a turn.
      vu idle;
      for (int i = 0; i < W; ++i) idle[i] = i % kStates < active ? 0 : ~0u;
      for (int i = 0; i < kWords; ++i) {
        made.word[i] = (before.word[i] & idle) | (made.word[i] & ~idle);
      }
    }
    store_numbers<T>(numbers, out, rows, kStates, first, count);
  }
  for (int i = 0; i < kWords; ++i) *(vu_any*)words[i] = made.word[i];
  for (int64_t lane = 0; lane < lanes; ++lane) {
    for (int i = 0; i < kWords; ++i) state[lane * kWords + i] = words[i][lane];
  }
}

template <class T, int kStates>
void draw_all(char* const* slots, const int64_t* p) {
  constexpr int64_t kRows = W / kStates;
  auto* state = reinterpret_cast<uint32_t*>(slots[1]);
  for (int64_t row = 0; row < p[0]; row += kRows) {
    draw<T, kStates>(rows_of<T>(slots[0], p[4], row), state + row * kStates * kWords,
                     least(kRows, p[0] - row), p[1]);
  }
}

template <class T>
void draw_any(char* const* slots, const int64_t* p) {
  p[2] == 1 ? draw_all<T, 1>(slots, p) : draw_all<T, 4>(slots, p);
}

// slots: out, state. params: rows, size, states of a row (1 or 4), bytes of an element of `out`
// (1, 2 or 4: the least significant ones are kept), bytes from row to row of `out`.
bool xorwow(char* const* slots, const int64_t* p, nki::Fault&) {
  switch (p[3]) {
    case 1:
      draw_any<uint8_t>(slots, p);
      break;
    case 2:
      draw_any<uint16_t>(slots, p);
      break;
    default:
      draw_any<uint32_t>(slots, p);
  }
  return true;
}

}  // namespace

}  // namespace torch_neuronx::kernels::TN_ISA
