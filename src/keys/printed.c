/*-------------------------------------------------------------------------
 *
 * printed.c
 *	  How long is a jsonb as text?
 *
 * A number of a few bytes can have a hundred thousand digits, so a jsonb that
 * is small enough to be stored may be too long to be read: an outcome that
 * nobody can get any more.  Its text is measured here without being made.
 *
 *-------------------------------------------------------------------------
 */
#include "keys/idem_keys.h"

#include "access/detoast.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/memutils.h"
#include "utils/numeric.h"

/*
 * Text longer than this is not recorded.  It must fit into one allocation, and
 * so must what it becomes in the client's encoding, with up to four bytes for
 * one (MAX_CONVERSION_GROWTH).
 */
#define IDEM_MAX_PRINTED	(MaxAllocSize / 4)

/*
 * No jsonb prints more characters for each of its bytes: numbers print most, a
 * number of 16 bytes some 147 000.  What is short cannot be too long as text.
 */
#define IDEM_MAX_GROWTH		10000

/* What numeric_send writes: 16-bit fields, see canonical.c */
#define WIRE_WEIGHT			1
#define WIRE_SCALE			3

/*
 * An upper bound of what numeric_out writes, at most three digits too high: a
 * sign, four digits for each of numeric's own before the point, a point and the
 * scale.
 */
static Size
number_length(Numeric number)
{
	Datum		sent = DirectFunctionCall1(numeric_send,
										   NumericGetDatum(number));
	const char *wire = VARDATA(DatumGetPointer(sent));
	int			weight = (int16) idem_wire_field(wire, WIRE_WEIGHT);
	int			scale = idem_wire_field(wire, WIRE_SCALE);

	pfree(DatumGetPointer(sent));
	return 1 + (weight < 0 ? 1 : (weight + 1) * 4) + 1 + scale;
}

/* What escape_json() writes at most */
static Size
string_length(const char *str, int len)
{
	Size		length = 2 + (Size) len;

	for (int i = 0; i < len; i++)
	{
		if ((unsigned char) str[i] < ' ')
			length += 5;		/* \u0001 */
		else if (str[i] == '"' || str[i] == '\\')
			length++;
	}
	return length;
}

/* An upper bound of a scalar's length */
static Size
scalar_length(const JsonbValue *value)
{
	switch (value->type)
	{
		case jbvString:
			return string_length(value->val.string.val, value->val.string.len);
		case jbvNumeric:
			return number_length(value->val.numeric);
		default:
			return strlen("false");
	}
}

/* Is the text longer than what is recorded? */
static bool
is_too_long(Jsonb *jb)
{
	JsonbIterator *it = JsonbIteratorInit(&jb->root);
	JsonbIteratorToken token;
	JsonbValue	value;
	Size		length = 0;

	while (length <= IDEM_MAX_PRINTED &&
		   (token = JsonbIteratorNext(&it, &value, false)) != WJB_DONE)
	{
		length += strlen(", ");
		if (token == WJB_KEY || token == WJB_VALUE || token == WJB_ELEM)
			length += scalar_length(&value);
	}
	return length > IDEM_MAX_PRINTED;
}

/* Can the jsonb be read as text? */
bool
idem_is_printable(Datum jsonb)
{
	Jsonb	   *jb;
	bool		printable;

	if (toast_raw_datum_size(jsonb) <= IDEM_MAX_PRINTED / IDEM_MAX_GROWTH)
		return true;
	jb = DatumGetJsonbP(jsonb);
	printable = !is_too_long(jb);
	if (PointerGetDatum(jb) != jsonb)
		pfree(jb);
	return printable;
}

/* Refuse an outcome that could be recorded and never be read */
void
idem_check_printable(Datum result)
{
	if (!idem_is_printable(result))
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("result is too long as text to be recorded"),
				 errdetail("Its numbers and strings have more than %zu characters when they are written out.",
						   (Size) IDEM_MAX_PRINTED),
				 errhint("Record a reference to it, or very large numbers as strings.")));
}
