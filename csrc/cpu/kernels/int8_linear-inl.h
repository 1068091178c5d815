// The rows of KernelTable::int8.

inline void fill_int8(KernelTable& table) {
  const auto put = [&](DType dtype, const Int8Format& format) {
    table.int8[int8_index(dtype)] = format;
  };
  put(DType::kQ8_0, int8_format<Q8_0>());
  put(DType::kQ4_0, int8_format<Q4_0>());
  put(DType::kQ4_1, int8_format<Q4_1>());
  put(DType::kQ5_0, int8_format<Q5_0>());
  put(DType::kQ5_1, int8_format<Q5_1>());
  put(DType::kQ4_K, int8_format<Q4_K>());
  put(DType::kQ5_K, int8_format<Q5_K>());
  put(DType::kQ6_K, int8_format<Q6_K>());
}
