/* tests/util/tu_certs.h - certificate authorities and certificates for tests, as PEM files.
 */
#ifndef TU_CERTS_H
#define TU_CERTS_H

typedef struct tu_ca tu_ca;

/* A self-signed authority, valid for a day. Stops the test on any failure, as all functions here.
 */
tu_ca *tu_ca_new(const char *name);
void tu_ca_free(tu_ca *ca);
/* Its certificate; append: behind what is in the file. */
void tu_ca_write(const tu_ca *ca, const char *path, int append);
/* A certificate for localhost and 127.0.0.1 signed by ca, and its new key. Valid from an hour ago
 * to valid_s from now (negative: expired). Files are replaced by rename when atomic, else
 * overwritten in two pieces, as a careless script does. */
void tu_cert_write(const tu_ca *ca, const char *name, long valid_s, const char *cert_path,
                   const char *key_path, int atomic);
/* Replaces a file's contents by rename. */
void tu_file_write(const char *path, const char *text);

#endif
