/* base/build_info.h - which build this is: version, commit, features.
 *
 * Layer:   base. Threads: pure, any.
 * Reproducible: made of the sources alone; two builds of one commit say the same. The date is the
 *          commit's.
 */
#ifndef BD_BUILD_INFO_H
#define BD_BUILD_INFO_H

/* "0.1.0" */
const char *bd_build_version(void);
/* Short hash, with "-dirty" when tracked files differed; "unknown" outside a git checkout. */
const char *bd_build_commit(void);
/* "cuda=no type=Release ..." */
const char *bd_build_features(void);
/* One line for --version: "braid-ps 0.1.0 (commit 1a2b3c4 of 2026-11-29; cuda=no ...)". The text is
 * this thread's and lives until the next call. */
const char *bd_build_line(const char *program);

#endif
