/*-------------------------------------------------------------------------
 *
 * keys.c
 *	  Fingerprints of requests, and keys derived from what an action is.
 *
 * Every function here gives the same answer for the same action, in any
 * session, on any server, after any crash; that is the whole point.  None
 * reads a clock, a sequence or a setting.
 *
 * A derived key is NAME:SUFFIX, readable where an operator meets it.  The
 * suffix never contains a colon, so its end is found from the right and
 * nothing that a name contains can make two actions share a key.
 *
 *-------------------------------------------------------------------------
 */
#include "keys/idem_keys.h"

#include "lib/stringinfo.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"

/* Digits of SHA-256 that go into a key: 128 bits, beyond chance collisions */
#define KEY_HASH_BYTES		16
#define KEY_HASH_DIGITS		(2 * KEY_HASH_BYTES)

PG_FUNCTION_INFO_V1(idem_fingerprint);
PG_FUNCTION_INFO_V1(idem_key);
PG_FUNCTION_INFO_V1(idem_step_key);
PG_FUNCTION_INFO_V1(idem_call_key);

/*
 * Begin a buffer that is going to be hashed.
 *
 * The place of a varlena's header is left free, so that the content need not
 * be copied to become a bytea.
 */
static void
begin_digest(StringInfo buf)
{
	initStringInfo(buf);
	appendStringInfoSpaces(buf, VARHDRSZ);
}

/*
 * Return the SHA-256 of what was appended since, and free the buffer.
 */
static bytea *
end_digest(StringInfo buf)
{
	Datum		digest;

	SET_VARSIZE(buf->data, buf->len);
	digest = DirectFunctionCall1(sha256_bytea, PointerGetDatum(buf->data));
	pfree(buf->data);
	return DatumGetByteaP(digest);
}

/*
 * Return the fingerprint of a request: the SHA-256 of its canonical form.
 */
bytea *
idem_fingerprint_jsonb(Jsonb *request)
{
	StringInfoData buf;

	begin_digest(&buf);
	idem_canonical_append(&buf, &request->root);
	return end_digest(&buf);
}

/*
 * Return the fingerprint of an object given by its members, as
 * idem_canonical_append_object() takes them.
 */
bytea *
idem_fingerprint_object(JsonbContainer *fields,
						const IdemMember *extra, int nextra)
{
	StringInfoData buf;

	begin_digest(&buf);
	idem_canonical_append_object(&buf, fields, extra, nextra);
	return end_digest(&buf);
}

/*
 * idem_fingerprint(request jsonb) returns bytea
 */
Datum
idem_fingerprint(PG_FUNCTION_ARGS)
{
	/* its owner can make it one that is called for NULL as well */
	if (PG_ARGISNULL(0))
		PG_RETURN_NULL();
	PG_RETURN_BYTEA_P(idem_fingerprint_jsonb(PG_GETARG_JSONB_P(0)));
}

/*
 * Refuse an argument that is SQL NULL.
 *
 * A strict function would hand the NULL on, and the reader of the error that
 * follows could not tell which of his variables was never set.
 */
static void
require_argument(FunctionCallInfo fcinfo, int argno, const char *what)
{
	if (PG_ARGISNULL(argno))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("%s must not be null", what)));
}

/*
 * Refuse a hashed part that says nothing: it is nearly always a variable that
 * was never set, and all actions that share it would become one.  Otherwise
 * such a part may be anything of any length.
 */
static void
check_not_blank(const char *what, text *part)
{
	const char *s = VARDATA_ANY(part);
	int			len = VARSIZE_ANY_EXHDR(part);

	for (int i = 0; i < len; i++)
	{
		if (s[i] != ' ' && (s[i] < '\t' || s[i] > '\r'))
			return;
	}
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("%s must not be empty or blank", what)));
}

/*
 * Compose the key; what it shows of the name must be fit for a key.
 */
static text *
make_key(const char *what, text *name, const char *suffix)
{
	const char *str = VARDATA_ANY(name);
	int			len = VARSIZE_ANY_EXHDR(name);
	int			room = IDEM_MAX_KEY - 1 - (int) strlen(suffix);
	const char *error = idem_name_error(str, len, room, false);

	if (error)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s %s", what, error)));
	return cstring_to_text(psprintf("%.*s:%s", len, str, suffix));
}

/*
 * Compose a key from a name and the hash of the object it stands for.
 */
static text *
make_hashed_key(const char *what, text *name, JsonbContainer *fields,
				const IdemMember *extra, int nextra)
{
	bytea	   *digest;
	char		hex[KEY_HASH_DIGITS + 1];

	digest = idem_fingerprint_object(fields, extra, nextra);
	hex_encode(VARDATA_ANY(digest), KEY_HASH_BYTES, hex);
	hex[KEY_HASH_DIGITS] = '\0';
	return make_key(what, name, hex);
}

/*
 * Make a member with a string as its value.
 */
void
idem_member_text(IdemMember *member, const char *name, text *value)
{
	member->name = name;
	member->namelen = strlen(name);
	member->value.type = jbvString;
	member->value.val.string.val = VARDATA_ANY(value);
	member->value.val.string.len = VARSIZE_ANY_EXHDR(value);
}

/*
 * Make a member with a jsonb as its value.
 */
void
idem_member_jsonb(IdemMember *member, const char *name, Jsonb *value)
{
	member->name = name;
	member->namelen = strlen(name);
	if (JsonbExtractScalar(&value->root, &member->value))
		return;
	member->value.type = jbvBinary;
	member->value.val.binary.data = &value->root;
	member->value.val.binary.len = VARSIZE(value) - VARHDRSZ;
}

/*
 * Return the key of a tool call; "turn" may be NULL.
 */
text *
idem_make_call_key(text *tool, Jsonb *args, text *turn)
{
	IdemMember	members[3];
	int			count = 2;

	idem_member_text(&members[0], "tool", tool);
	idem_member_jsonb(&members[1], "args", args);
	if (turn)
	{
		check_not_blank("turn", turn);
		idem_member_text(&members[count++], "turn", turn);
	}
	return make_hashed_key("tool", tool, NULL, members, count);
}

/*
 * Refuse a field that would take the place of another argument.
 */
static void
check_no_member(JsonbContainer *fields, const char *name, const char *what)
{
	if (getKeyJsonValueFromContainer(fields, name, strlen(name), NULL))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("fields must not have a member \"%s\"", name),
				 errdetail("In the hashed object that member is the %s.",
						   what)));
}

/*
 * Refuse fields that cannot stand beside operation and identity.
 */
static void
check_fields(JsonbContainer *fields)
{
	if (!JsonContainerIsObject(fields))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("fields must be a JSON object")));
	check_no_member(fields, "op", "operation");
	check_no_member(fields, "id", "identity");
}

/*
 * idem_key(operation text, identity text, fields jsonb) returns text
 */
Datum
idem_key(PG_FUNCTION_ARGS)
{
	IdemMember	members[2];
	JsonbContainer *fields = NULL;
	text	   *operation;
	text	   *identity;

	require_argument(fcinfo, 0, "operation");
	require_argument(fcinfo, 1, "identity");
	operation = PG_GETARG_TEXT_PP(0);
	identity = PG_GETARG_TEXT_PP(1);
	check_not_blank("identity", identity);
	if (!PG_ARGISNULL(2))
	{
		fields = &PG_GETARG_JSONB_P(2)->root;
		check_fields(fields);
	}

	idem_member_text(&members[0], "op", operation);
	idem_member_text(&members[1], "id", identity);
	PG_RETURN_TEXT_P(make_hashed_key("operation", operation, fields,
									 members, lengthof(members)));
}

/*
 * idem_step_key(run_id text, step bigint) returns text
 */
Datum
idem_step_key(PG_FUNCTION_ARGS)
{
	int64		step;

	require_argument(fcinfo, 0, "run_id");
	require_argument(fcinfo, 1, "step");
	step = PG_GETARG_INT64(1);
	if (step < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("step must not be negative")));

	PG_RETURN_TEXT_P(make_key("run_id", PG_GETARG_TEXT_PP(0),
							  psprintf(INT64_FORMAT, step)));
}

/*
 * idem_call_key(tool text, args jsonb, turn text) returns text
 */
Datum
idem_call_key(PG_FUNCTION_ARGS)
{
	require_argument(fcinfo, 0, "tool");
	require_argument(fcinfo, 1, "args");
	PG_RETURN_TEXT_P(idem_make_call_key(PG_GETARG_TEXT_PP(0),
										PG_GETARG_JSONB_P(1),
										PG_ARGISNULL(2) ? NULL :
										PG_GETARG_TEXT_PP(2)));
}
