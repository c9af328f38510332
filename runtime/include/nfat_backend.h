/* The C interface of libnfat_backend. Loading the library registers the backend "NfatBackend" with ExecuTorch. */

#ifndef NFAT_BACKEND_H
#define NFAT_BACKEND_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NFAT_BACKEND_API __attribute__((visibility("default")))

/* Version of ExecuTorch that the library was built for. It runs with no other one, whose classes may differ. */
NFAT_BACKEND_API const char* nfat_backend_executorch_version(void);

/* 0 if the backend is registered; an executorch::runtime::Error otherwise. */
NFAT_BACKEND_API int nfat_backend_status(void);

/* How much of a payload is verified before it runs, by all loads from now on that do not give the option themselves:
 * "none", "parsed" (which it is from the start) or "all". Returns 0, or an executorch::runtime::Error for other names. */
NFAT_BACKEND_API int nfat_backend_verify_digests(const char* level);

/* Remembers in a file which payloads have passed the checks that they carry, so that all loads from now on run each
 * check once; NULL: run them at each load, as from the start. `device` names the device, its drivers and whatever else
 * results may depend on: a payload is checked again for another one. The folder of the file has to exist and belong to
 * the app. A payload whose check has ended the process twice, with a backend that aborts, is passed over. */
NFAT_BACKEND_API void nfat_backend_remember_checks(const char* file, const char* device);

/* What became of each payload when this thread last loaded a fat method, one line for each.
 *
 * Writes at most `size` bytes, of which the last is a NUL. Returns the length of the whole text without the NUL. */
NFAT_BACKEND_API size_t nfat_backend_report(char* text, size_t size);

#ifdef __cplusplus
}
#endif

#endif
