// linear_known.cu - the table of linear_known.h, shared by the models of a process, and its text.
#include "linear_known.h"

#include <cstring>
#include <map>
#include <mutex>
#include <sstream>

namespace llmc {
namespace {

std::mutex mutex;
std::map<std::string, Known> table;

constexpr char DIGITS[] = "0123456789abcdef";

std::string hex(const cublasLtMatmulAlgo_t &algo) {
    std::string text;
    const auto *bytes = reinterpret_cast<const unsigned char *>(&algo);
    for (size_t i = 0; i < sizeof algo; i++) text += {DIGITS[bytes[i] / 16], DIGITS[bytes[i] % 16]};
    return text;
}

bool unhex(const std::string &text, cublasLtMatmulAlgo_t *algo) {
    if (text.size() != 2 * sizeof *algo || text.find_first_not_of(DIGITS) != std::string::npos) return false;
    auto *bytes = reinterpret_cast<unsigned char *>(algo);
    const auto digit = [&](size_t i) { return std::strchr(DIGITS, text[i]) - DIGITS; };
    for (size_t i = 0; i < sizeof *algo; i++) bytes[i] = static_cast<unsigned char>(16 * digit(2 * i) + digit(2 * i + 1));
    return true;
}

bool parse(const std::string &line, std::string *key, Known *known) {
    const size_t first = line.find('\t'), second = line.find('\t', first + 1);
    if (first == std::string::npos || first == 0 || second != first + 2) return false;
    const int way = line[first + 1] - '0';
    if (way < int(Way::LIBRARY) || way > int(Way::OWN)) return false;
    *key = line.substr(0, first);
    known->way = Way(way);
    return unhex(line.substr(second + 1), &known->algo);
}

}  // namespace

std::string known_key(const Lane &lane, const LinearUse &use, cudaDataType_t type) {
    cudaDeviceProp device{};
    cuda_check(cudaGetDeviceProperties(&device, lane.device), "linear: device properties");
    std::ostringstream key;
    key << device.name << ", " << lane.sms << " SMs, cuBLASLt " << cublasLtGetVersion() << ", " << lane.blas_workspace_bytes << " bytes: "
        << (type == CUDA_R_16BF ? "bf16" : lane.tf32 ? "tf32" : "fp32") << " op " << int(use.op) << ", N " << use.N << ", C " << use.C << ", OC " << use.OC
        << (use.bias ? ", bias" : "") << (use.into == Into::ADD ? ", add" : "");
    return key.str();
}

std::optional<Known> known(const std::string &key) {
    const std::lock_guard<std::mutex> lock(mutex);
    const auto found = table.find(key);
    return found == table.end() ? std::nullopt : std::optional<Known>(found->second);
}

void remember_known(const std::string &key, const Known &value) {
    const std::lock_guard<std::mutex> lock(mutex);
    table[key] = value;
}

std::string linear_export_tuning() {
    const std::lock_guard<std::mutex> lock(mutex);
    std::string text;
    for (const auto &[key, value] : table) text += key + '\t' + char('0' + int(value.way)) + '\t' + hex(value.algo) + '\n';
    return text;
}

void linear_import_tuning(const std::string &text) {
    std::map<std::string, Known> found;
    std::istringstream lines(text);
    std::string line, key;
    for (int number = 1; std::getline(lines, line); number++) {
        Known value{};
        if (!parse(line, &key, &value)) fail(LLMC_INVALID, "line %d of the text is not one that llmc_tuning_export wrote", number);
        found[key] = value;
    }
    const std::lock_guard<std::mutex> lock(mutex);
    table.merge(found);  // what this process has found itself stays
}

}  // namespace llmc
