// As many numbers as a vector holds, for update_arithmetic.h. Included inside a namespace, as that is. `D` is
// Highway's name for a kind of vectors.

template <bool kCuda, class D>
struct Lanes {
  static constexpr bool kIsCuda = kCuda;
  using Number = hn::Vec<D>;

  HWY_INLINE Number all(float value) const { return hn::Set(D(), value); }
  HWY_INLINE Number root(Number value) const { return hn::Sqrt(value); }
  HWY_INLINE Number fused(Number a, Number b, Number c) const { return hn::MulAdd(a, b, c); }

  // Well ahead: the machine's own prefetching ends with a page.
  template <class T>
  HWY_INLINE void prefetch(const T* from) const {
    hwy::Prefetch(from + 512);
  }

  HWY_INLINE Number load(const float* from) const {
    prefetch(from);
    return hn::LoadU(D(), from);
  }
  HWY_INLINE void store(Number value, float* to) const { hn::StoreU(value, D(), to); }

  HWY_INLINE Number load(const c10::BFloat16* from) const {
    return hn::BitCast(D(), hn::ShiftLeft<16>(load_bits(from)));
  }
  HWY_INLINE void store(Number value, c10::BFloat16* to) const {
    const Bits bits = hn::BitCast(U(), value);
    const Bits rounded = bits + (hn::ShiftRight<16>(bits) & of(1)) + of(0x7fff);
    store_bits(or_nan(value, hn::ShiftRight<16>(rounded), kCuda ? 0x7fff : 0x7fc0), to);
  }

  // Halves as c10 converts them where it has no instruction for it.
  HWY_INLINE Number load(const c10::Half* from) const {
    const Bits bits = load_bits(from), magnitude = bits & of(0x7fff);
    const Number normal = hn::BitCast(D(), hn::ShiftLeft<13>(magnitude) + of(224u << 23)) * all(0x1p-112f);
    const Number tiny = hn::BitCast(D(), magnitude | of(126u << 23)) - all(0.5f);
    const auto is_tiny = hn::RebindMask(D(), hn::Lt(magnitude, of(0x400)));
    const Bits sign = hn::ShiftLeft<16>(hn::AndNot(of(0x7fff), bits));
    return hn::Or(hn::BitCast(D(), sign), hn::IfThenElse(is_tiny, tiny, normal));
  }
  HWY_INLINE void store(Number value, c10::Half* to) const {
    const Bits bits = hn::BitCast(U(), value), magnitude = bits & of(0x7fffffff);
    const Bits exponent = hn::Max(magnitude & of(0x7f800000), of(0x38800000)) + of(0x07800000);
    const Number sized = hn::Abs(value) * all(0x1p112f) * all(0x1p-110f);  // infinite from 65536 on
    const Bits rounded = hn::BitCast(U(), hn::BitCast(D(), exponent) + sized);
    const Bits half = (hn::ShiftRight<13>(rounded) & of(0x7c00)) + (rounded & of(0xfff));
    const Bits sign = hn::ShiftRight<16>(bits ^ magnitude);
    store_bits(sign | or_nan(value, half, kCuda ? 0x7fff : 0x7e00), to);
  }

  // As SplitFloat has them.
  HWY_INLINE Number joined(const c10::BFloat16* nearest, const std::int16_t* remainders) const {
    prefetch(remainders);
    const hn::Rebind<std::int16_t, D> d16;
    const auto remainder = hn::PromoteTo(hn::RebindToSigned<D>(), hn::LoadU(d16, remainders));
    return hn::BitCast(D(), hn::ShiftLeft<16>(load_bits(nearest)) + hn::BitCast(U(), remainder));
  }
  HWY_INLINE void split(Number value, c10::BFloat16* nearest, std::int16_t* remainders) const {
    const Bits bits = hn::BitCast(U(), value), rounded = (bits + of(0x8000)) & of(0xffff0000);
    store_bits(or_nan(value, hn::ShiftRight<16>(rounded), 0x7fc0), nearest);
    store_bits(or_nan(value, bits - rounded, 0), remainders);
  }

  // Every NaN that a GPU writes is the same.
  HWY_INLINE Number written(Number value) const {
    if constexpr (!kCuda) return value;
    return hn::BitCast(D(), or_nan(value, hn::BitCast(U(), value), 0x7fffffff));
  }

 private:
  using U = hn::RebindToUnsigned<D>;
  using U16 = hn::Rebind<std::uint16_t, D>;
  using Bits = hn::Vec<U>;

  HWY_INLINE static Bits of(std::uint32_t bits) { return hn::Set(U(), bits); }
  template <class T>
  HWY_INLINE Bits load_bits(const T* from) const {
    prefetch(from);
    return hn::PromoteTo(U(), hn::LoadU(U16(), reinterpret_cast<const std::uint16_t*>(from)));
  }
  HWY_INLINE static void store_bits(Bits bits, void* to) {
    hn::StoreU(hn::TruncateTo(U16(), bits), U16(), static_cast<std::uint16_t*>(to));
  }
  HWY_INLINE static Bits or_nan(Number value, Bits bits, std::uint32_t nan) {
    return hn::IfThenElse(hn::RebindMask(U(), hn::IsNaN(value)), of(nan), bits);
  }
};
