// What an optimizer does to a number, or to as many as a vector holds. Included inside a namespace, once for
// each kind of vectors: the compiler wants to know, where a function is defined, which instructions it may
// use.
//
// `Math` is how the numbers compute: all(float), root(x), and fused(a, b, c), which is a * b + c in one
// rounding. In the arithmetic of CUDA, every product that is added to something is fused here, so that nvcc
// has nothing left to fuse; in that of the CPU none is. The order is torch's: on CUDA that of its fused
// kernel, on the CPU that of its plain optimizer.

template <class Math, class Number>
SNUG_ANYWHERE inline Number multiply_add(Math math, float a, Number b, Number c) {
  if constexpr (Math::kIsCuda)
    return math.fused(math.all(a), b, c);
  else
    return math.all(a) * b + c;
}

// beta * average + (1 - beta) * value.
template <class Math, class Number>
SNUG_ANYWHERE inline Number moved_towards(Math math, Number average, Number value, float beta) {
  if constexpr (Math::kIsCuda)
    return math.fused(math.all(beta), average, math.fused(math.all(-beta), value, value));
  else
    return math.all(beta) * average + math.all(1 - beta) * value;  // 1 - beta is exact
}

template <class Math, class Number>
SNUG_ANYWHERE inline void update(const AdamWRule& rule, Math math, Number& weight, Number& exp_avg,
                                 Number& exp_avg_sq, Number gradient) {
  if constexpr (Math::kIsCuda)
    weight = math.fused(math.all(-(rule.lr * rule.weight_decay)), weight, weight);
  else
    weight = weight * math.all(rule.kept);
  exp_avg = moved_towards(math, exp_avg, gradient, rule.beta1);
  exp_avg_sq = moved_towards(math, exp_avg_sq, gradient * gradient, rule.beta2);
  const Number denominator = math.root(exp_avg_sq) / math.all(rule.correction2_root) + math.all(rule.eps);
  weight = weight - math.all(rule.lr / rule.correction1) * exp_avg / denominator;
}

template <bool kHasMomentum, class Math, class Number>
SNUG_ANYWHERE inline void update(const SgdRule<kHasMomentum>& rule, Math math, Number& weight, Number& buffer,
                                 Number&, Number gradient) {
  const Number decayed = multiply_add(math, rule.weight_decay, weight, gradient);
  buffer = kHasMomentum ? multiply_add(math, rule.momentum, buffer, decayed) : decayed;
  weight = multiply_add(math, -rule.lr, buffer, weight);
}
