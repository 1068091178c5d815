// Values of kRows rows of activations. What does not fit in registers beside the integer sums lives
// in the given memory, and asm statements keep the compiler from holding copies of it in registers,
// for which it would spill the integer sums. Included inside namespace simd, behind kKeptRows, the
// rows that fit.
template <typename T, int kRows>
class Kept {
 public:
  static constexpr bool kIsInMemory = kRows > kKeptRows;
  static constexpr int kMemory = kIsInMemory ? kRows : 1;

  explicit PYVT_INLINE Kept(T (&memory)[kMemory]) : memory_(memory) {
    if (kIsInMemory) asm("" : "+r"(memory_) : : "memory");
  }
  PYVT_INLINE T get(int m) const {
    if constexpr (kIsInMemory) return memory_[m];
    return values_[m];
  }
  PYVT_INLINE void set(int m, T value) {
    if constexpr (kIsInMemory) {
      memory_[m] = value;
      asm volatile("" : : : "memory");
    } else {
      values_[m] = value;
    }
  }

 private:
  T* memory_;
  T values_[kIsInMemory ? 1 : kRows];
};
