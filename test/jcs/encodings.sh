#!/bin/sh
#
# Show that fingerprints and keys are the same in every server encoding.
#
#		test/jcs/encodings.sh [extension [schema]]
#
# Connects as the PG* variables say, to a UTF8 database that has the extension
# (default: idem_tool in public); the role must be allowed to create databases
# and the extension.  Each database is dropped again.

set -eu

extension=${1:-idem_tool}
schema=${2:-public}
home=${PGDATABASE:-postgres}
database=idem_encodings_$$
export PGCLIENTENCODING=UTF8

trap 'psql -X -q -d "$home" -c "SET client_min_messages = warning" \
	-c "DROP DATABASE IF EXISTS $database"' EXIT
trap 'exit 1' HUP INT TERM

# Print the fingerprint, a key and the canonical form of document $2 in
# database $1
answers()
{
	psql -X -q -A -t -v ON_ERROR_STOP=1 -d "$1" -v doc="$2" -v s="$schema" \
		<<'SQL'
SELECT :"s".idem_fingerprint(:'doc'::jsonb),
	   :"s".idem_key(:'doc', :'doc', jsonb_build_object('f', :'doc'::jsonb)),
	   :"s".idem_canonical(:'doc'::jsonb);
SQL
}

checked=0

# Compare the answers in a database of encoding $1 for document $2
check()
{
	psql -X -q -v ON_ERROR_STOP=1 -d "$home" -c "CREATE DATABASE $database
		TEMPLATE template0 ENCODING '$1' LC_COLLATE 'C' LC_CTYPE 'C'"
	psql -X -q -v ON_ERROR_STOP=1 -v e="$extension" -v s="$schema" \
		-d "$database" <<'SQL'
SELECT 'CREATE SCHEMA ' || quote_ident(:'s')
	WHERE to_regnamespace(quote_ident(:'s')) IS NULL \gexec
CREATE EXTENSION :"e" SCHEMA :"s";
SQL
	wanted=$(answers "$home" "$2")
	got=$(answers "$database" "$2")
	psql -X -q -v ON_ERROR_STOP=1 -d "$home" -c "DROP DATABASE $database"
	if [ -z "$wanted" ] || [ "$got" != "$wanted" ]; then
		printf 'encodings: %s differs:\n%s\n%s\n' "$1" "$wanted" "$got" >&2
		exit 1
	fi
	checked=$((checked + 1))
}

# Names whose order in the encoding is not that of UTF-16
check LATIN1 '{"é":"ü","z":[1,"ß"],"É":"\u00ff"}'
check LATIN9 '{"€":1,"é":2,"Ž":3}'
check WIN1252 '{"€":1,"é":2,"™":3,"Ÿ":4}'
check WIN1251 '{"Ё":1,"я":2,"Ђ":3,"а":4}'
check KOI8R '{"ю":1,"а":2,"ц":3,"Ю":"да"}'
check EUC_JP '{"日本":"語","か":1,"亜":"ア","a":{"鼠":0}}'
check EUC_JIS_2004 '{"日本":"語","か":1,"a":"゜"}'
check EUC_KR '{"한":1,"가":2,"國":"나"}'
check EUC_CN '{"中":1,"国":2,"啊":"人"}'
check EUC_TW '{"中":1,"國":2,"一":"人"}'
check SQL_ASCII '{"é":"😀","😀":1,"":2}'
check UTF8 '{"é":"😀","😀":1,"":2}'

echo "encodings: $checked server encodings agree"
