/*-------------------------------------------------------------------------
 *
 * name.c
 *	  What a scope, a key or a holder may be called.
 *
 *-------------------------------------------------------------------------
 */
#include "keys/idem_keys.h"

#include "mb/pg_wchar.h"

/*
 * Does a control character start at "c"?  C0 and DEL in any encoding; in
 * UTF-8 the C1 block as well (encoded C2 80 to C2 9F).
 */
static bool
is_control(const char *c, const char *end, bool utf8)
{
	unsigned char ch = (unsigned char) *c;

	if (ch < 0x20 || ch == 0x7f)
		return true;
	return utf8 && ch == 0xc2 && c + 1 < end &&
		(unsigned char) c[1] >= 0x80 && (unsigned char) c[1] <= 0x9f;
}

/*
 * What is wrong with a name (key, scope or holder) that callers would collide
 * on or that the index could not hold?  NULL if nothing is.  Lengths are in
 * bytes of the server encoding.
 */
const char *
idem_name_error(const char *str, int len, int maxlen, bool empty_ok)
{
	bool		utf8 = GetDatabaseEncoding() == PG_UTF8;
	bool		blank = true;

	if (len > maxlen)
		return psprintf("must not be longer than %d bytes", maxlen);
	if (len == 0 && empty_ok)
		return NULL;

	for (const char *c = str; c < str + len; c++)
	{
		/* most are printable ASCII */
		if (*c > ' ' && *c < 0x7f)
			blank = false;
		else if (is_control(c, str + len, utf8))
			return "must not contain control characters";
		else if (*c != ' ')
			blank = false;
	}
	if (!blank)
		return NULL;
	return empty_ok ? "must not be blank" : "must not be empty or blank";
}
