/* etcd's own users: a password for a token, which then goes with every call.
 *
 * A token ends with its time (300 s without use), with etcd's restart, and with each change of its
 * users and roles. Nobody tells: the next call is refused, and a login gives another token.
 */
#include "base/log.h"
#include "base/mem.h"

#include "rpc/rpc_etcd_int.h"

#include <string.h>

/* etcd has no codes of its own for these: its texts are its interface (api/v3rpc/rpctypes). */
#define NO_TOKEN      "user name is empty"
#define OLD_USERS     "revision of auth store is old"
#define NO_SUCH_LOGIN "authentication failed"
#define NOT_ENABLED   "authentication is not enabled"

static bool says(const bd_err *err, const char *text)
{
    return strstr(bd_err_text(err), text) != NULL;
}

bool etcd_wants_login(const bd_err *err)
{
    return err->code == BD_E_UNAUTHENTICATED ||
           (err->code == BD_E_INVALID && (says(err, NO_TOKEN) || says(err, OLD_USERS)));
}

void etcd_explain(const etcd *e, bd_err *err)
{
    if (e->user == NULL && etcd_wants_login(err)) {
        (void)bd_err_set(err, BD_E_UNAUTHENTICATED,
                         "%s asks for a user: set etcd_user and etcd_password_file, or etcd_cert",
                         e->name);
    } else if (err->code == BD_E_DENIED) {
        bool named = e->user != NULL;
        (void)bd_err_set(err, BD_E_DENIED,
                         "%s denies %s%.64s the keys below /%.128s/: give it a role that may read "
                         "and write there",
                         e->name, named ? "user " : "etcd_cert's user", named ? e->user : "",
                         e->prefix);
    }
}

/* The first line of the file; owned, forget(). */
static bd_status read_password(const etcd *e, char **out, bd_err *err)
{
    bd_status rc = rpc_file_read("etcd_password_file", e->password_file, out, err);
    if (rc == BD_OK) {
        (*out)[strcspn(*out, "\r\n")] = '\0';
    }
    return rc;
}

static void forget(char *text)
{
    if (text != NULL) {
        explicit_bzero(text, strlen(text));
        bd_free(text);
    }
}

/* *token (owned): "" where etcd has its authentication switched off. */
static bd_status authenticate(etcd *e, size_t at, int64_t try_ms, char **token, bd_err *err)
{
    Etcdserverpb__AuthenticateRequest req;
    ProtobufCMessage *msg = NULL;
    char *password = NULL;
    etcdserverpb__authenticate_request__init(&req);
    bd_status rc = read_password(e, &password, err);
    if (rc == BD_OK) {
        req.name = e->user;
        req.password = password;
        rc = etcd_ask_one(e->channels[at], "Auth/Authenticate", &req.base,
                          &etcdserverpb__authenticate_response__descriptor, try_ms, &msg, err);
    }
    forget(password);
    if (rc == BD_E_INVALID && says(err, NO_SUCH_LOGIN)) {
        rc = bd_err_set(err, BD_E_UNAUTHENTICATED,
                        "%s has no user \"%.64s\" with the password in %.200s", e->name, e->user,
                        e->password_file);
    }
    bool is_off = rc == BD_E_STATE && says(err, NOT_ENABLED);
    if (is_off) {
        BD_LOG(WARN, "etcd asks nobody for a user: enable its authentication", "store", e->name);
    }
    if (rc == BD_OK || is_off) {
        const Etcdserverpb__AuthenticateResponse *r = (const void *)msg;
        *token = bd_strdup(is_off ? "" : r->token);
        rc = *token != NULL ? BD_OK : bd_err_set(err, BD_E_NOMEM, "etcd: login");
    }
    px_unpacked_free(msg);
    return rc;
}

bd_status etcd_login(etcd *e, size_t at, uint64_t seen, int64_t try_ms, bd_err *err)
{
    bd_status rc = BD_OK;
    char *token = NULL;
    if (e->user == NULL || atomic_load(&e->n_logins) > seen) {
        return BD_OK;
    }
    rpc_blocking_begin();
    (void)pthread_mutex_lock(&e->login);
    if (atomic_load(&e->n_logins) <= seen) { /* else another thread was faster */
        rc = authenticate(e, at, try_ms, &token, err);
        for (size_t i = 0; rc == BD_OK && i < e->n_channels; i++) {
            rc = rpc_channel_set_token(e->channels[i], token, err);
        }
        if (rc == BD_OK) {
            atomic_fetch_add(&e->n_logins, 1);
        }
    }
    (void)pthread_mutex_unlock(&e->login);
    rpc_blocking_end();
    forget(token);
    return rc;
}
