// One loop, compiled for several vector units; the loader picks at run time. No flag of the build machine leaks in.
#pragma once

// (Not with ThreadSanitizer: the loader picks before the sanitizer is ready.)
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__SANITIZE_THREAD__)
#define P4R_VECTORISED __attribute__((target_clones("arch=skylake-avx512", "avx2", "default")))
#else
#define P4R_VECTORISED
#endif
