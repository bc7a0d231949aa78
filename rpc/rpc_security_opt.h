/* rpc/rpc_security_opt.h - the option rows of rpc_security_options, the same for every binary.
 *
 * Layer: rpc, public. at(member): where the member lies in the binary's struct of options, e.g.
 *        #define SEC(m) offsetof(ps_options, security.m)
 */
#ifndef RPC_SECURITY_OPT_H
#define RPC_SECURITY_OPT_H

#include "base/option.h"

#include "rpc/rpc_security.h"

/* Of every process that calls servers. */
#define RPC_SECURITY_ROWS(at)                                                                \
    {"tls_ca",                                                                               \
     BD_OPT_STR,                                                                             \
     at(ca_file),                                                                            \
     "",                                                                                     \
     0,                                                                                      \
     0,                                                                                      \
     NULL,                                                                                   \
     "PEM file of the authorities that sign the servers' certificates: speak TLS; empty: "   \
     "plain text."},                                                                         \
        {"tls_cert",                                                                         \
         BD_OPT_STR,                                                                         \
         at(cert_file),                                                                      \
         "",                                                                                 \
         0,                                                                                  \
         0,                                                                                  \
         NULL,                                                                               \
         "PEM file of the own certificate (and its chain); read again when it changes."},    \
        {"tls_key", BD_OPT_STR, at(key_file), "",                                            \
         0,         0,          NULL,         "PEM file of the certificate's private key."}, \
        {"tls_server_name",                                                                  \
         BD_OPT_STR,                                                                         \
         at(server_name),                                                                    \
         "",                                                                                 \
         0,                                                                                  \
         0,                                                                                  \
         NULL,                                                                               \
         "Name that the servers' certificates must have; empty: the host that is called."},  \
    {                                                                                        \
        "token_file", BD_OPT_STR, at(token_file), "", 0, 0, NULL,                            \
            "File with the token this process shows to servers; read again when it changes." \
    }

/* Of every process that may ask etcd. */
#define RPC_ETCD_ROWS(at)                                                                            \
    {"etcd_ca",                                                                                      \
     BD_OPT_STR,                                                                                     \
     at(etcd_ca_file),                                                                               \
     "",                                                                                             \
     0,                                                                                              \
     0,                                                                                              \
     NULL,                                                                                           \
     "PEM file of the authorities that sign etcd's certificates: TLS to etcd; empty, with "          \
     "etcd_cert empty too: as tls_ca, tls_cert and tls_key."},                                       \
        {"etcd_cert",                                                                                \
         BD_OPT_STR,                                                                                 \
         at(etcd_cert_file),                                                                         \
         "",                                                                                         \
         0,                                                                                          \
         0,                                                                                          \
         NULL,                                                                                       \
         "PEM file of the certificate that etcd is shown; read again when it changes."},             \
        {"etcd_key", BD_OPT_STR, at(etcd_key_file), "", 0, 0, NULL, "PEM file of its private key."}, \
        {"etcd_user",                                                                                \
         BD_OPT_STR,                                                                                 \
         at(etcd_user),                                                                              \
         "",                                                                                         \
         0,                                                                                          \
         0,                                                                                          \
         NULL,                                                                                       \
         "User of etcd, where its authentication is enabled; empty: none (or the common "            \
         "name of etcd_cert)."},                                                                     \
    {                                                                                                \
        "etcd_password_file", BD_OPT_STR, at(etcd_password_file), "", 0, 0, NULL,                    \
            "File with that user's password; read at each login."                                    \
    }

#endif
