/*-------------------------------------------------------------------------
 *
 * canonical.c
 *	  Canonical JSON (RFC 8785), from which fingerprints and keys are made.
 *
 * Two requests are the same request if their canonical forms are the same
 * bytes, so this output is part of what is stored for ever: it may never
 * change.  It depends on nothing but the value: no setting, no collation,
 * not the server encoding (the form is UTF-8 everywhere), not the version
 * of PostgreSQL.
 *
 * In one point it goes further than the RFC, which rounds every number to a
 * double first.  jsonb is exact, and two different amounts must not meet in
 * one fingerprint, so numbers keep their exact decimal value and only the
 * layout is ECMAScript's.  For what a double can hold the two agree.
 *
 *-------------------------------------------------------------------------
 */
#include "keys/idem_keys.h"

#include "lib/stringinfo.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "port/pg_bswap.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/memutils.h"
#include "utils/numeric.h"

/*
 * What numeric_send writes: four 16-bit fields, then the digits, each of them
 * four decimal digits.  numeric's layout on disk is private and numeric_out
 * spells 1e100000 out in 100001 characters; the wire format is documented,
 * the same in every version, and no longer than the digits that matter.
 */
#define WIRE_NDIGITS		0
#define WIRE_WEIGHT			1
#define WIRE_SIGN			2
#define WIRE_DIGITS			4

#define WIRE_POSITIVE		0x0000
#define WIRE_NEGATIVE		0x4000

#define WIRE_DIGIT_WIDTH	4	/* decimal digits in one digit of the wire */

/* ECMAScript's Number::toString leaves plain notation outside of these */
#define PLAIN_MAX_POINT		21
#define PLAIN_MIN_POINT		(-5)

PG_FUNCTION_INFO_V1(idem_canonical);

static void append_value(StringInfo buf, const JsonbValue *value);

/*
 * Is a string the same in every server encoding?  Spares the common case the
 * catalog lookup that a conversion needs.
 */
static bool
is_ascii(const char *s, int len)
{
	for (int i = 0; i < len; i++)
	{
		if (IS_HIGHBIT_SET(s[i]))
			return false;
	}
	return true;
}

/*
 * Convert a string of the database to UTF-8.
 *
 * SQL_ASCII knows no conversion: its bytes are taken as they are, which is
 * what its users ask for by choosing it, and right when they hold UTF-8.
 * Returns its argument when there is nothing to do.
 */
static const char *
to_utf8(const char *s, int *len)
{
	int			encoding = GetDatabaseEncoding();
	char	   *converted;

	if (encoding == PG_UTF8 || encoding == PG_SQL_ASCII || is_ascii(s, *len))
		return s;

	converted = (char *) pg_do_encoding_conversion((unsigned char *) s, *len,
												   encoding, PG_UTF8);
	*len = strlen(converted);
	return converted;
}

/*
 * Append the escape of a character that may not stand for itself.
 */
static void
append_escape(StringInfo buf, unsigned char c)
{
	/* from BS to CR; JSON has no letter for VT */
	static const char letters[] = "btn\0fr";
	char		letter = '\0';

	if (c == '"' || c == '\\')
		letter = c;
	else if (c >= '\b' && c <= '\r')
		letter = letters[c - '\b'];

	if (letter != '\0')
		appendStringInfo(buf, "\\%c", letter);
	else
		appendStringInfo(buf, "\\u%04x", c);
}

/*
 * Append a UTF-8 string in quotes.
 *
 * Only what JSON forbids is escaped; DEL and everything beyond ASCII stands
 * for itself.
 */
static void
append_quoted(StringInfo buf, const char *s, int len)
{
	const char *end = s + len;
	const char *plain = s;

	appendStringInfoChar(buf, '"');
	for (; s < end; s++)
	{
		unsigned char c = (unsigned char) *s;

		if (likely(c >= 0x20 && c != '"' && c != '\\'))
			continue;
		appendBinaryStringInfo(buf, plain, s - plain);
		append_escape(buf, c);
		plain = s + 1;
	}
	appendBinaryStringInfo(buf, plain, end - plain);
	appendStringInfoChar(buf, '"');
}

/*
 * Append a string value.
 */
static void
append_string(StringInfo buf, const char *s, int len)
{
	const char *utf8 = to_utf8(s, &len);

	append_quoted(buf, utf8, len);
	if (utf8 != s)
		pfree(unconstify(char *, utf8));
}

/*
 * Append the number 0.DIGITS times ten to the power of "point", laid out as
 * ECMAScript's Number::toString does.
 *
 * The digits have no zeros at either end.
 */
static void
append_decimal(StringInfo buf, const char *digits, int ndigits, int point)
{
	/* As many as PLAIN_MAX_POINT */
	static const char zeros[] = "000000000000000000000";

	if (point > PLAIN_MAX_POINT || point < PLAIN_MIN_POINT)
	{
		appendStringInfoChar(buf, digits[0]);
		if (ndigits > 1)
		{
			appendStringInfoChar(buf, '.');
			appendBinaryStringInfo(buf, digits + 1, ndigits - 1);
		}
		appendStringInfo(buf, "e%+d", point - 1);
	}
	else if (point <= 0)
	{
		appendStringInfoString(buf, "0.");
		appendBinaryStringInfo(buf, zeros, -point);
		appendBinaryStringInfo(buf, digits, ndigits);
	}
	else if (ndigits <= point)
	{
		appendBinaryStringInfo(buf, digits, ndigits);
		appendBinaryStringInfo(buf, zeros, point - ndigits);
	}
	else
	{
		appendBinaryStringInfo(buf, digits, point);
		appendStringInfoChar(buf, '.');
		appendBinaryStringInfo(buf, digits + point, ndigits - point);
	}
}

/*
 * Read a field of numeric_send's output.
 */
uint16
idem_wire_field(const char *wire, int field)
{
	uint16		value;

	memcpy(&value, wire + field * sizeof(value), sizeof(value));
	return pg_ntoh16(value);
}

/*
 * Append a number with its exact value.
 */
static void
append_number(StringInfo buf, Numeric number)
{
	Datum		sent = DirectFunctionCall1(numeric_send,
										   NumericGetDatum(number));
	const char *wire = VARDATA(DatumGetPointer(sent));
	int			count = idem_wire_field(wire, WIRE_NDIGITS);
	uint16		sign = idem_wire_field(wire, WIRE_SIGN);
	int			point;
	int			ndigits = 0;
	char	   *digits;
	char	   *first;

	/* jsonb has no NaN and no infinity; a broken one must not pass as 0 */
	if (sign != WIRE_POSITIVE && sign != WIRE_NEGATIVE)
		elog(ERROR, "number in jsonb is not finite");

	/* The weight is that of the first digit, and may be negative */
	point = ((int16) idem_wire_field(wire, WIRE_WEIGHT) + 1) * WIRE_DIGIT_WIDTH;

	digits = first = palloc(count * WIRE_DIGIT_WIDTH + 1);
	for (int i = 0; i < count; i++)
	{
		int			digit = idem_wire_field(wire, WIRE_DIGITS + i);

		for (int power = 1000; power > 0; power /= 10)
			digits[ndigits++] = '0' + digit / power % 10;
	}
	while (ndigits > 0 && digits[ndigits - 1] == '0')
		ndigits--;
	for (; ndigits > 0 && *first == '0'; first++, ndigits--)
		point--;

	if (ndigits == 0)
		appendStringInfoChar(buf, '0');
	else
	{
		if (sign == WIRE_NEGATIVE)
			appendStringInfoChar(buf, '-');
		append_decimal(buf, first, ndigits, point);
	}

	pfree(digits);
	pfree(DatumGetPointer(sent));
}

/*
 * Order two members by the UTF-16 code units of their names.
 *
 * That is the order of their UTF-8 bytes but for one thing: UTF-16 writes
 * what lies beyond U+FFFF (lead bytes from F0) with surrogates, which come
 * before U+E000 to U+FFFF (lead bytes EE and EF).  No other byte of UTF-8 is
 * as high as these, so a difference there is one between lead bytes.
 */
static int
compare_members(const void *a, const void *b, void *arg)
{
	const IdemMember *left = (const IdemMember *) a;
	const IdemMember *right = (const IdemMember *) b;
	int			len = Min(left->namelen, right->namelen);

	(void) arg;					/* unused */

	for (int i = 0; i < len; i++)
	{
		unsigned char l = (unsigned char) left->name[i];
		unsigned char r = (unsigned char) right->name[i];

		if (l == r)
			continue;
		if (l >= 0xEE && r >= 0xEE && (l >= 0xF0) != (r >= 0xF0))
			return l >= 0xF0 ? -1 : 1;
		return l < r ? -1 : 1;
	}
	return left->namelen - right->namelen;
}

/*
 * Set the name of a member that is going to be sorted.
 */
static void
set_name(IdemMember *member, const char *name, int len)
{
	member->name = to_utf8(name, &len);
	member->namelen = len;
}

/*
 * Append an object that has the members of "fields" (NULL: none) and those
 * of "extra", which the caller knows to be none of them.
 */
void
idem_canonical_append_object(StringInfo buf, JsonbContainer *fields,
							 const IdemMember *extra, int nextra)
{
	Size		size = fields ? JsonContainerSize(fields) : 0;
	int			count = 0;
	IdemMember *members;

	/* An object of maximal size needs more than palloc's gigabyte */
	members = MemoryContextAllocHuge(CurrentMemoryContext,
									 (size + nextra) * sizeof(IdemMember));
	for (; count < nextra; count++)
	{
		members[count] = extra[count];
		set_name(&members[count], extra[count].name, extra[count].namelen);
	}
	if (fields)
	{
		JsonbIterator *it = JsonbIteratorInit(fields);
		JsonbIteratorToken token;
		JsonbValue	v;

		while ((token = JsonbIteratorNext(&it, &v, true)) != WJB_DONE)
		{
			CHECK_FOR_INTERRUPTS();
			if (token == WJB_KEY)
				set_name(&members[count], v.val.string.val, v.val.string.len);
			else if (token == WJB_VALUE)
				members[count++].value = v;
		}
	}

	/* jsonb keeps its members by length first, so they are always sorted */
	qsort_interruptible(members, count, sizeof(IdemMember),
						compare_members, NULL);

	appendStringInfoChar(buf, '{');
	for (int i = 0; i < count; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (i > 0)
			appendStringInfoChar(buf, ',');
		append_quoted(buf, members[i].name, members[i].namelen);
		appendStringInfoChar(buf, ':');
		append_value(buf, &members[i].value);
	}
	appendStringInfoChar(buf, '}');
	pfree(members);
}

/*
 * Append an array.
 */
static void
append_array(StringInfo buf, JsonbContainer *array)
{
	JsonbIterator *it = JsonbIteratorInit(array);
	JsonbIteratorToken token;
	JsonbValue	v;
	bool		first = true;

	appendStringInfoChar(buf, '[');
	while ((token = JsonbIteratorNext(&it, &v, true)) != WJB_DONE)
	{
		CHECK_FOR_INTERRUPTS();
		if (token != WJB_ELEM)
			continue;
		if (!first)
			appendStringInfoChar(buf, ',');
		first = false;
		append_value(buf, &v);
	}
	appendStringInfoChar(buf, ']');
}

/*
 * Append any value as it comes out of a container.
 */
static void
append_value(StringInfo buf, const JsonbValue *value)
{
	switch (value->type)
	{
		case jbvNull:
			appendStringInfoString(buf, "null");
			break;
		case jbvBool:
			appendStringInfoString(buf,
								   value->val.boolean ? "true" : "false");
			break;
		case jbvNumeric:
			append_number(buf, value->val.numeric);
			break;
		case jbvString:
			append_string(buf, value->val.string.val, value->val.string.len);
			break;
		case jbvBinary:
			idem_canonical_append(buf, value->val.binary.data);
			break;
		default:
			elog(ERROR, "unexpected jsonb value type: %d", value->type);
	}
}

/*
 * Append the canonical form of a jsonb container, in UTF-8.
 */
void
idem_canonical_append(StringInfo buf, JsonbContainer *jc)
{
	JsonbValue	scalar;

	check_stack_depth();

	/* A lone scalar is stored as an array of one with a mark */
	if (JsonbExtractScalar(jc, &scalar))
		append_value(buf, &scalar);
	else if (JsonContainerIsArray(jc))
		append_array(buf, jc);
	else
		idem_canonical_append_object(buf, jc, NULL, 0);
}

/*
 * idem_canonical(document jsonb) returns text
 *
 * The text is in the server encoding, as every text; who hashes it himself
 * has to convert it to UTF-8 first, which is all that fingerprints know.
 */
Datum
idem_canonical(PG_FUNCTION_ARGS)
{
	StringInfoData buf;
	char	   *result;

	/* its owner can make it one that is called for NULL as well */
	if (PG_ARGISNULL(0))
		PG_RETURN_NULL();
	initStringInfo(&buf);
	idem_canonical_append(&buf, &PG_GETARG_JSONB_P(0)->root);
	if (GetDatabaseEncoding() == PG_UTF8 || is_ascii(buf.data, buf.len))
		PG_RETURN_TEXT_P(cstring_to_text_with_len(buf.data, buf.len));

	result = (char *) pg_do_encoding_conversion((unsigned char *) buf.data,
												buf.len, PG_UTF8,
												GetDatabaseEncoding());
	PG_RETURN_TEXT_P(cstring_to_text(result));
}
