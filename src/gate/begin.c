/*-------------------------------------------------------------------------
 *
 * begin.c
 *	  idem_begin: the gate for tools that run outside the database.
 *
 * What it reserves must be committed before the tool has its effect, so it
 * refuses to run where its caller could forget that: in a transaction block,
 * which drivers like to open by themselves.
 *
 *-------------------------------------------------------------------------
 */
#include "gate/idem_gate.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "funcapi.h"
#include "utils/builtins.h"

#include "keys/idem_keys.h"

/* Argument numbers */
#define ARG_TOOL	0
#define ARG_ARGS	1
#define ARG_KEY		2
#define ARG_WAIT	3
#define ARG_HOLDER	4
#define ARG_SCOPE	5

/* Lengths of the argument types, for callsite.c */
static const int arglens[] = {-1, -1, -1, sizeof(Interval), -1, -1};

/* Columns of type idem_begun: those of idem_answer, then these */
enum
{
	Anum_begun_key = Natts_answer,
	Anum_begun_provider_key,
	Anum_begun_result_ttl,
	Natts_begun
};

static const Oid column_types[Natts_begun] = {
	TEXTOID, JSONBOID, INT8OID, INT4OID, BOOLOID, TIMESTAMPTZOID,
	TIMESTAMPTZOID, INT4OID, TEXTOID, TEXTOID, INTERVALOID
};

/*
 * Providers take keys of 255 characters.  Of ours, those go through as they
 * are whose characters no header, log or library is going to touch; the hash
 * of others comes after a tilde, which such a key does not have.
 */
#define IDEM_MAX_PROVIDER_KEY	255
#define IDEM_HASH_LENGTH		65	/* tilde, 64 digits */
#define IDEM_PLAIN_PUNCTUATION	"-._:@+=|"

PG_FUNCTION_INFO_V1(idem_begin);

/* Does the text have but letters, digits and harmless punctuation? */
static bool
is_plain(text *str, const char *punctuation)
{
	const char *s = VARDATA_ANY(str);

	for (int i = 0; i < VARSIZE_ANY_EXHDR(str); i++)
	{
		if (!(s[i] >= 'a' && s[i] <= 'z') && !(s[i] >= 'A' && s[i] <= 'Z') &&
			!(s[i] >= '0' && s[i] <= '9') &&
			(s[i] == '\0' || strchr(punctuation, s[i]) == NULL))
			return false;
	}
	return true;
}

/* A tilde and the SHA-256 of scope and key, the same in any encoding */
static char *
hashed_key(const IdemKey *key)
{
	IdemMember	members[2];
	bytea	   *digest;
	char	   *hex = palloc(IDEM_HASH_LENGTH + 1);

	idem_member_text(&members[0], "scope", key->scope);
	idem_member_text(&members[1], "key", key->key);
	digest = idem_fingerprint_object(NULL, members, lengthof(members));
	hex[0] = '~';
	hex_encode(VARDATA_ANY(digest), VARSIZE_ANY_EXHDR(digest), hex + 1);
	hex[IDEM_HASH_LENGTH] = '\0';
	return hex;
}

/*
 * The key to hand on to a provider: ASCII, no longer than providers take, the
 * same for every attempt, and different for different scopes and keys.
 *
 * It is "scope/key"; without a scope, just the key, unless a slash in that
 * would make it look like the former.  What cannot go through as it is, is
 * hashed: the key alone if the scope can stay, else both.
 */
static text *
provider_key(const IdemKey *key)
{
	int			scopelen = VARSIZE_ANY_EXHDR(key->scope);
	int			keylen = VARSIZE_ANY_EXHDR(key->key);
	char	   *scope = text_to_cstring(key->scope);
	const char *slash = scopelen > 0 ||
		memchr(VARDATA_ANY(key->key), '/', keylen) ? "/" : "";
	bool		plain_scope = is_plain(key->scope, IDEM_PLAIN_PUNCTUATION);

	if (plain_scope && is_plain(key->key, IDEM_PLAIN_PUNCTUATION "/") &&
		scopelen + (int) strlen(slash) + keylen <= IDEM_MAX_PROVIDER_KEY)
		return cstring_to_text(psprintf("%s%s%s", scope, slash,
										text_to_cstring(key->key)));
	if (plain_scope && scopelen > 0 &&
		scopelen + 1 + IDEM_HASH_LENGTH <= IDEM_MAX_PROVIDER_KEY)
		return cstring_to_text(psprintf("%s/%s", scope, hashed_key(key)));
	return cstring_to_text(hashed_key(key));
}

/* Answer for a tool that passes without a key */
static void
begin_unkeyed(IdemGate *gate, FunctionCallInfo fcinfo, Datum *values,
			  bool *nulls)
{
	IdemKey		key;

	memset(nulls, true, Natts_begun * sizeof(bool));
	values[Anum_answer_status] = CStringGetTextDatum("unkeyed");
	nulls[Anum_answer_status] = false;

	/* a target that recognizes repetitions wants to be told the key */
	if (gate->tool.effect == IDEM_IDEMPOTENT && !PG_ARGISNULL(ARG_KEY))
	{
		idem_key_from_args(&key, fcinfo, ARG_KEY, ARG_SCOPE);
		values[Anum_begun_key] = PointerGetDatum(key.key);
		values[Anum_begun_provider_key] = PointerGetDatum(provider_key(&key));
		nulls[Anum_begun_key] = nulls[Anum_begun_provider_key] = false;
	}
}

/* Reserve the key for a write, and answer what became of that */
static void
begin_write(IdemGate *gate, FunctionCallInfo fcinfo, Datum *values,
			bool *nulls)
{
	IdemReserveRequest request = {.name = "idem_begin()"};
	IdemReserveOutcome outcome;

	idem_gate_request(&request, gate, fcinfo, ARG_KEY, ARG_SCOPE);
	request.wait_usecs = idem_wait_from_args(fcinfo, ARG_WAIT);
	request.holder = PG_ARGISNULL(ARG_HOLDER) ? NULL :
		idem_name_from_args(fcinfo, ARG_HOLDER, "holder", IDEM_MAX_HOLDER,
							false);
	idem_gate_reserve(&request, gate, &outcome);

	memcpy(values, outcome.answer.values, sizeof(outcome.answer.values));
	memcpy(nulls, outcome.answer.isnull, sizeof(outcome.answer.isnull));
	values[Anum_begun_key] = PointerGetDatum(request.key.key);
	values[Anum_begun_provider_key] =
		PointerGetDatum(provider_key(&request.key));
	values[Anum_begun_result_ttl] = IntervalPGetDatum(gate->result_ttl);
	nulls[Anum_begun_key] = nulls[Anum_begun_provider_key] = false;
	nulls[Anum_begun_result_ttl] = gate->result_ttl == NULL;
}

/* One call, in FROM or elsewhere */
static bool
begin(FunctionCallInfo fcinfo, Datum *values, bool *nulls)
{
	IdemGate	gate;

	idem_require_autocommit("idem_begin()");
	idem_tool_from_args(&gate.tool, fcinfo, ARG_TOOL);
	gate.args = idem_tool_args_from_args(fcinfo, ARG_ARGS);
	if (gate.tool.effect == IDEM_WRITE)
		begin_write(&gate, fcinfo, values, nulls);
	else
		begin_unkeyed(&gate, fcinfo, values, nulls);
	return true;
}

const IdemScanFunction idem_begin_scan = {
	.name = "idem_begin",
	.function = idem_begin,
	.nargs = lengthof(arglens),
	.natts = Natts_begun,
	.types = column_types,
	.call = begin
};

static HeapTuple
begun_tuple(FunctionCallInfo fcinfo)
{
	TupleDesc	desc;
	Datum		values[Natts_begun];
	bool		nulls[Natts_begun];

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	idem_check_columns(desc, column_types, Natts_begun, "idem_begun");
	(void) begin(fcinfo, values, nulls);
	return heap_form_tuple(desc, values, nulls);
}

/*
 * idem_begin(tool, args, key, wait, holder, scope) → one row
 *
 * Decides whether a tool outside the database may run now.  Errors: those of
 * idem_reserve; IK008 for a write without a key; 42704 for a tool that is not
 * registered; 25001 inside a transaction block.
 */
Datum
idem_begin(PG_FUNCTION_ARGS)
{
	HeapTuple	given = idem_callsite_recall(fcinfo, arglens);

	if (given == NULL)
	{
		given = begun_tuple(fcinfo);
		idem_callsite_remember(fcinfo, arglens, given);
	}
	PG_RETURN_DATUM(HeapTupleGetDatum(given));
}
