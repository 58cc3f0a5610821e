// error.h - how the engine's inside reports: it throws, api.cpp turns the throw into status + text.
#pragma once
#include <cstdarg>
#include <cstdio>
#include <stdexcept>
#include <string>

#include "llmc.h"

namespace llmc {

struct Error : std::runtime_error {
    llmc_status status;
    Error(llmc_status s, const std::string &text) : std::runtime_error(text), status(s) {}
};

// Throws Error with a printf-style sentence; the sentence names the value and the limit.
[[noreturn]] __attribute__((format(printf, 2, 3))) inline void fail(llmc_status status, const char *format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    std::vsnprintf(text, sizeof text, format, args);
    va_end(args);
    throw Error(status, text);
}

}  // namespace llmc
