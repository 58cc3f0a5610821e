// p(i) ~ exp((logit_i - max) / temperature): subtracting the maximum keeps the largest term at 1, so
// nothing overflows. top_k keeps the k largest, top_p then the fewest whose probabilities reach p.
#include "sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "error.h"

namespace llmc {

namespace {

// SplitMix64, its top 53 bits as a double in [0, 1).
double next_uniform(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    z ^= z >> 31;
    return double(z >> 11) * 0x1p-53;
}

// The first of the largest logits. The common case is one pass that compilers turn into vector code.
int likeliest(const float *logits, int vocab) {
    float top = -INFINITY;
    int odd = 0;
#pragma omp simd reduction(max : top) reduction(| : odd)
    for (int i = 0; i < vocab; i++) {
        odd |= !(logits[i] < INFINITY);
        top = logits[i] > top ? logits[i] : top;
    }
    for (int i = 0; odd && i < vocab; i++) {
        if (!(logits[i] < INFINITY)) fail(LLMC_INVALID, "logit %d of %d is %s", i, vocab, std::isnan(logits[i]) ? "NaN" : "infinite");
    }
    if (top == -INFINITY) fail(LLMC_INVALID, "none of the %d logits is finite", vocab);
    return int(std::find(logits, logits + vocab, top) - logits);
}

}  // namespace

int sample(const float *logits, int vocab, const llmc_sampling &how, uint64_t *state) {
    if (vocab < 1) fail(LLMC_INVALID, "vocab is %d, expected at least 1", vocab);
    if (!(how.temperature >= 0) || std::isinf(how.temperature)) fail(LLMC_INVALID, "temperature is %g, expected 0 (the largest logit) or more", how.temperature);
    if (how.top_k < 0) fail(LLMC_INVALID, "top_k is %d, expected 0 (off) or more", how.top_k);
    if (!(how.top_p > 0 && how.top_p <= 1)) fail(LLMC_INVALID, "top_p is %g, expected more than 0 and at most 1 (off)", how.top_p);
    const int best = likeliest(logits, vocab);
    if (how.temperature == 0) return best;

    // Single precision carries the exponentials: their relative error of 1e-7 is far below what a draw can show.
    const float top = logits[best], scale = 1.0f / how.temperature;
    const auto weight = [&](int i) { return std::exp((logits[i] - top) * scale); };
    const double u = next_uniform(state);
    if (how.top_k == 0 && how.top_p == 1) {
        std::vector<float> weights(static_cast<size_t>(vocab));
        double total = 0;
        for (int i = 0; i < vocab; i++) total += weights[size_t(i)] = weight(i);
        double left = u * total;
        int chosen = best;  // rounding may leave a remainder after the last positive weight
        for (int i = 0; i < vocab; i++) {
            if (weights[size_t(i)] <= 0) continue;
            chosen = i;
            if ((left -= double(weights[size_t(i)])) < 0) break;
        }
        return chosen;
    }

    std::vector<int> kept(static_cast<size_t>(vocab));
    std::iota(kept.begin(), kept.end(), 0);
    // Ties go to the lower id, so that the kept set does not depend on the library's sort.
    const auto likelier = [&](int a, int b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; };
    if (how.top_k > 0 && how.top_k < vocab) {
        std::nth_element(kept.begin(), kept.begin() + how.top_k - 1, kept.end(), likelier);
        kept.resize(size_t(how.top_k));
    }
    double total = 0;
    for (int i : kept) total += double(weight(i));
    // Sorted only as far as top_p reaches, in growing pieces: mostly a few of many thousand.
    const double wanted = how.top_p < 1 ? how.top_p * total : INFINITY;
    std::vector<float> weights;
    double reached = 0;
    for (size_t sorted = 0; sorted < kept.size() && reached < wanted;) {
        const size_t piece = std::min(kept.size() - sorted, std::max<size_t>(64, 3 * sorted));
        const auto from = kept.begin() + long(sorted), to = from + long(piece);
        if (to != kept.end()) std::nth_element(from, to, kept.end(), likelier);
        std::sort(from, to, likelier);
        sorted += piece;
        while (weights.size() < sorted && reached < wanted) weights.push_back(weight(kept[weights.size()])), reached += double(weights.back());
    }
    double left = u * reached;
    for (size_t i = 0; i < weights.size(); i++) {
        if ((left -= double(weights[i])) < 0) return kept[i];
    }
    return kept[weights.size() - 1];
}

}  // namespace llmc
