/*-------------------------------------------------------------------------
 *
 * session.c
 *	  Tokens that this session won, for idem_tool.session_tokens.
 *
 * For people at a prompt, who reserve in one statement and settle in another
 * without copying a token.  Unsafe behind a pooler, where a session is shared
 * by clients, and off by default: then nothing is remembered.
 *
 *-------------------------------------------------------------------------
 */
#include "call/idem_call.h"

#include "utils/hsearch.h"

typedef struct SessionToken
{
	uint64		hash[2];		/* scope and key, under two secrets */
	int64		token;
} SessionToken;

static HTAB *tokens = NULL;

static HTAB *
create_tokens(void)
{
	HASHCTL		ctl;

	ctl.keysize = sizeof(uint64) * 2;
	ctl.entrysize = sizeof(SessionToken);
	return hash_create("idem_tool session tokens", 64, &ctl,
					   HASH_ELEM | HASH_BLOBS);
}

static void
hash_key(uint64 *hash, const IdemKey *key)
{
	hash[0] = key->hash;
	hash[1] = idem_key_hash(key, 1);
}

/*
 * This session's latest idem_reserve of the key won "token", or nothing (0).
 */
void
idem_session_note(const IdemKey *key, int64 token)
{
	uint64		hash[2];

	if (!idem_session_tokens)
		return;
	if (tokens == NULL)
		tokens = create_tokens();

	hash_key(hash, key);
	if (token != 0)
		((SessionToken *) hash_search(tokens, hash, HASH_ENTER, NULL))->token = token;
	else
		(void) hash_search(tokens, hash, HASH_REMOVE, NULL);
}

/* What the session's latest idem_reserve of the key won, 0 if nothing */
int64
idem_session_token(const IdemKey *key)
{
	SessionToken *entry;
	uint64		hash[2];

	if (!idem_session_tokens || tokens == NULL)
		return 0;
	hash_key(hash, key);
	entry = hash_search(tokens, hash, HASH_FIND, NULL);
	return entry ? entry->token : 0;
}
