// A program and the engine in one process, fed with sequences of frames. Compiled with -DPROGRAM="file" (generated
// code) and -DENTRIES="file" (recorded calls), by any compiler with sanitizers; with -DLIBFUZZER for libFuzzer.
//
// An input is a sequence of {port: 1 byte, length: 2 bytes little endian, frame}. State stays between inputs.
#include <dirent.h>

#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <string>

#include "engine.cpp"
#undef P4_API
#include PROGRAM

namespace {

constexpr size_t LONGEST = p4::MAX_FRAME - 4;
constexpr uint32_t CPU_PORT = 255, DROP_PORT = 511;

// Bytes that stand for an array of anything in a recorded call.
struct Buffer {
    std::vector<uint64_t> words;
    Buffer(std::initializer_list<int> bytes) : words((bytes.size() + 7) / 8 + 1) {
        auto* to = reinterpret_cast<uint8_t*>(words.data());
        for (int byte : bytes) *to++ = uint8_t(byte);
    }
    template <class T>
    operator T*() {
        return reinterpret_cast<T*>(words.data());
    }
};

#if defined(__clang__)
__attribute__((optnone, noinline))
#else
__attribute__((optimize("O0"), noinline))
#endif
void fill_tables(Engine* engine, void* program) {
    (void)engine, (void)program;
#include ENTRIES
}

struct Frame {
    uint8_t port;
    std::vector<uint8_t> bytes;
};
using Sequence = std::vector<Frame>;

Sequence parse(const uint8_t* data, size_t size) {
    Sequence sequence;
    for (size_t at = 0; at + 3 <= size;) {
        size_t length = data[at + 1] | size_t(data[at + 2]) << 8;
        length = std::min({length, size - at - 3, LONGEST});
        sequence.push_back({data[at], {data + at + 3, data + at + 3 + length}});
        at += 3 + length;
    }
    return sequence;
}

std::vector<uint8_t> serialise(const Sequence& sequence, size_t room) {
    std::vector<uint8_t> out;
    for (const Frame& frame : sequence) {
        if (out.size() + 3 + frame.bytes.size() > room) break;
        out.push_back(frame.port);
        out.push_back(uint8_t(frame.bytes.size()));
        out.push_back(uint8_t(frame.bytes.size() >> 8));
        out.insert(out.end(), frame.bytes.begin(), frame.bytes.end());
    }
    return out;
}

class Bench {
  public:
    uint64_t frames = 0, left = 0, bytes = 0, digest = 0;

    Bench() : engine_(engine_create(CPU_PORT, DROP_PORT, 1, 1)), program_(p4_create(engine_host(engine_))) {
        if (!program_) std::abort();
        engine_set_program(engine_, p4_process, p4_passes, program_);
        fill_tables(engine_, program_);
    }
    ~Bench() {
        engine_set_program(engine_, nullptr, nullptr, nullptr);
        p4_destroy(program_);
        engine_destroy(engine_);
    }

    void run(const Sequence& sequence) {
        for (const Frame& frame : sequence) {
            // Memory of its own, exactly as long: one byte further is seen.
            const size_t length = frame.bytes.size();
            std::unique_ptr<uint8_t[]> copy(new uint8_t[length]);
            if (length) std::memcpy(copy.get(), frame.bytes.data(), length);
            p4::Collector* out = engine_process(engine_, frame.port, copy.get(), uint32_t(length));
            take(out);
            engine_free(out);
            frames++;
        }
        std::vector<uint8_t> event(p4::MAX_FRAME);
        uint32_t length, level;
        while (engine_next_event(engine_, 0, event.data(), &length, &level) != p4::EVENT_NONE) {
        }
    }

  private:
    Engine* engine_;
    void* program_;

    void take(const p4::Collector* out) {
        size_t size;
        const uint8_t* data = engine_collected(out, &size);
        for (size_t at = 0; at < size;) {
            uint32_t length;
            std::memcpy(&length, data + at + 4, 4);
            if (length > size - at - 8) std::abort();
            left++, bytes += length;
            for (size_t i = 0; i < length; i++) digest = digest * 31 + data[at + 8 + i];
            at += 8 + length;
        }
        if (digest == 0x123456789) std::puts("!");  // valgrind: bytes that nobody wrote decide on this
    }
};

// Changes that keep some of what made a sequence interesting.
class Mutator {
  public:
    explicit Mutator(uint64_t seed) : random_(seed) {}
    uint64_t below(uint64_t n) { return n ? random_.next() % n : 0; }

    void mutate(Sequence& sequence, const Sequence& other) {
        if (sequence.empty()) sequence.push_back({1, std::vector<uint8_t>(64)});
        for (uint64_t count = 1 + below(4); count > 0; count--) {
            const size_t at = below(sequence.size());
            switch (below(12)) {
                case 0: sequence.insert(sequence.begin() + long(at), Frame(sequence[at])); break;
                case 1: std::swap(sequence[at], sequence[below(sequence.size())]); break;
                case 2: sequence[at].port = below(4) ? uint8_t(1 + below(8)) : uint8_t(below(256)); break;
                case 3:
                    if (sequence.size() > 1) sequence.erase(sequence.begin() + long(at));
                    break;
                case 4:
                    if (!other.empty()) splice(sequence[at].bytes, other[below(other.size())].bytes);
                    break;
                default: change(sequence[at].bytes);
            }
        }
    }

  private:
    p4::Random random_;

    // Most often where headers are.
    size_t place(size_t size) { return below(4) ? below(std::min<size_t>(size, 80)) : below(size); }

    void splice(std::vector<uint8_t>& to, const std::vector<uint8_t>& from) {
        const size_t keep = below(to.size() + 1), start = below(2) ? std::min(keep, from.size()) : below(from.size() + 1);
        to.resize(keep);
        to.insert(to.end(), from.begin() + long(start), from.end());
        if (to.size() > LONGEST) to.resize(LONGEST);
    }

    void change(std::vector<uint8_t>& bytes) {
        static const uint8_t telling[] = {0, 1, 0x7F, 0x80, 0xFE, 0xFF, 4, 0x40, 0x45, 0x4F};
        if (bytes.empty()) bytes.resize(1 + below(80));
        const size_t at = place(bytes.size());
        switch (below(10)) {
            case 0: case 1: bytes[at] ^= uint8_t(1 << below(8)); break;
            case 2: bytes[at] = uint8_t(below(256)); break;
            case 3: bytes[at] = telling[below(sizeof telling)]; break;
            case 4:
                for (size_t i = at; i < std::min(bytes.size(), at + 1 + below(8)); i++) bytes[i] = uint8_t(below(256));
                break;
            case 5: bytes.resize(at); break;
            case 6: bytes.resize(below(bytes.size() + 1)); break;
            case 7: {
                const size_t size = below(16) ? bytes.size() + below(300) : LONGEST - below(64);
                const size_t before = bytes.size();
                bytes.resize(std::max(before, std::min(size, LONGEST)));
                for (size_t i = before; i < bytes.size(); i++) bytes[i] = uint8_t(random_.next());
                break;
            }
            case 8: bytes[at] = uint8_t(bytes[at] + 1 - 2 * below(2)); break;
            default: {
                const size_t from = below(bytes.size()), count = std::min(1 + below(16), bytes.size() - std::max(at, from));
                std::memmove(&bytes[at], &bytes[from], count);
            }
        }
    }
};

Bench& bench() {
    static Bench one;
    return one;
}

uint64_t wanted_frames() {
    const char* text = std::getenv("FUZZ_FRAMES");
    return text ? std::strtoull(text, nullptr, 10) : ~uint64_t(0);
}

void report() {
    const Bench& b = bench();
    std::printf("frames %" PRIu64 " left %" PRIu64 " bytes %" PRIu64 " digest %016" PRIx64 "\n", b.frames, b.left, b.bytes, b.digest);
    std::fflush(stdout);
}

}  // namespace

#ifdef LIBFUZZER

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t room);

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const uint64_t wanted = wanted_frames();
    bench().run(parse(data, size));
    if (bench().frames >= wanted) {
        report();
        std::_Exit(0);
    }
    return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t room, unsigned int seed) {
    Sequence sequence = parse(data, size);
    Mutator mutator(seed);
    if (!sequence.empty() && mutator.below(3) == 0) {  // its own: it knows what comparisons were made with
        auto& bytes = sequence[mutator.below(sequence.size())].bytes;
        const size_t length = bytes.size();
        bytes.resize(std::min(LONGEST, length + 64));
        bytes.resize(LLVMFuzzerMutate(bytes.data(), length, bytes.size()));
    } else {
        mutator.mutate(sequence, {});
    }
    const std::vector<uint8_t> out = serialise(sequence, room);
    std::copy(out.begin(), out.end(), data);
    return out.size();
}

extern "C" size_t LLVMFuzzerCustomCrossOver(const uint8_t* one, size_t size, const uint8_t* two, size_t other_size,
                                            uint8_t* out, size_t room, unsigned int seed) {
    Sequence sequence = parse(one, size);
    Mutator(seed).mutate(sequence, parse(two, other_size));
    const std::vector<uint8_t> made = serialise(sequence, room);
    std::copy(made.begin(), made.end(), out);
    return made.size();
}

#else

// What ran when a sanitizer ended the process.
static std::vector<uint8_t> current;
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*)());
static void keep_current() {
    std::ofstream("crash-input", std::ios::binary).write(reinterpret_cast<const char*>(current.data()), long(current.size()));
}

static std::vector<Sequence> read_inputs(const std::string& path) {
    std::vector<std::string> names;
    if (DIR* folder = opendir(path.c_str())) {
        while (const dirent* entry = readdir(folder))
            if (entry->d_name[0] != '.') names.push_back(path + "/" + entry->d_name);
        closedir(folder);
    } else {
        names.push_back(path);
    }
    std::sort(names.begin(), names.end());
    std::vector<Sequence> inputs;
    for (const std::string& name : names) {
        std::ifstream file(name, std::ios::binary);
        const std::vector<char> content{std::istreambuf_iterator<char>(file), {}};
        inputs.push_back(parse(reinterpret_cast<const uint8_t*>(content.data()), content.size()));
    }
    return inputs;
}

// harness CORPUS SEED: all inputs as they are, then mutations of them until FUZZ_FRAMES frames were processed.
int main(int count, char** arguments) {
    if (count < 3) return 2;
    if (__sanitizer_set_death_callback) __sanitizer_set_death_callback(keep_current);
    const std::vector<Sequence> corpus = read_inputs(arguments[1]);
    const uint64_t wanted = wanted_frames();
    if (corpus.empty()) return 2;
    for (const Sequence& sequence : corpus) {
        current = serialise(sequence, ~size_t(0));
        bench().run(sequence);
    }
    Mutator mutator(std::strtoull(arguments[2], nullptr, 10));
    Sequence sequence;
    while (bench().frames < wanted && wanted != ~uint64_t(0)) {
        // Mutations of mutations now and then, not for ever.
        if (sequence.empty() || sequence.size() > 64 || mutator.below(3)) sequence = corpus[mutator.below(corpus.size())];
        mutator.mutate(sequence, corpus[mutator.below(corpus.size())]);
        current = serialise(sequence, ~size_t(0));
        bench().run(sequence);
    }
    report();
    return 0;
}

#endif
