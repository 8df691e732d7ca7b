// A capture file: pcap with nanoseconds, https://www.ietf.org/archive/id/draft-gharris-opsawg-pcap-01.html
#pragma once
#include <cerrno>
#include <cstdint>
#include <cstdio>

namespace p4 {

class Capture {
  public:
    Capture() = default;
    ~Capture() { close(); }
    Capture(const Capture&) = delete;
    Capture& operator=(const Capture&) = delete;

    int open(const char* path) {
        close();
        file_ = std::fopen(path, "wb");
        if (!file_) return -errno;
        const uint32_t header[6] = {0xA1B23C4D, 2 | 4 << 16, 0, 0, 65535, 1};  // 1: Ethernet
        std::fwrite(header, sizeof header, 1, file_);
        std::fflush(file_);
        return 0;
    }

    bool is_open() const { return file_ != nullptr; }

    void write(const uint8_t* frame, uint32_t length, uint32_t seconds, uint32_t nanoseconds) {
        const uint32_t header[4] = {seconds, nanoseconds, length, length};
        std::fwrite(header, sizeof header, 1, file_);
        std::fwrite(frame, length, 1, file_);
        dirty_ = true;
    }

    void flush() {
        if (dirty_) std::fflush(file_);
        dirty_ = false;
    }

    void close() {
        if (file_) std::fclose(file_);
        file_ = nullptr;
    }

  private:
    std::FILE* file_ = nullptr;
    bool dirty_ = false;
};

}  // namespace p4
