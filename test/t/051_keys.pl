# The few lines of other languages in docs/keys.md and docs/reference.md make the
# keys that idem_key makes.  A language that is not installed is skipped.

use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../perl";

use IdemTest::Blocks;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $docs = slurp_file("$FindBin::RealBin/../../docs/keys.md");
my $dir = PostgreSQL::Test::Utils::tempdir();

# operation, identity, fields as JSON
my @actions = (
	[ 'charge_card', 'ord_8891', '{"amount_cents": 4200}' ],
	[ 'charge_card', 'ord_8891', '{}' ],
	[ 'a:b', 'x:y', '{"b": 1, "a": -2, "B": 0}' ],
	[ "gr\xc3\xbc\xc3\x9fe", "\xf0\x9f\x98\x80 \xe2\x80\xa8\xc2\x80\x7f",
		"{\"\xc3\xa9\": \"\xc3\xa9\", \"z\": \"\\u0001\\b\\t\\\"\\\\/\"}" ],
	[ 'nested', '1',
		'{"z": {"b": [1, "x", null, true, false, {"q": 1, "p": []}], "a": {}}}' ]);

# what SQL refuses, and so must they
my @refused = (
	map({ [ 'charge', $_, '{}' ] } '', ' ', "\t", "\n \r\x0b\x0c"),
	map({ [ $_, '1', '{}' ] } '', '  ', "a\tb", "\n", "\x7f", "a\xc2\x85", 'x' x 992,
		"\xc3\xbc" x 496),
	map({ [ 'charge', '1', $_ ] } '{"op": 1}', '{"id": null, "x": 1}'));
# and what it does not
push @actions,
  map({ [ 'charge', $_, '{}' ] } "\xc2\xa0", "\x01", ' x ', "\x1c"),
  map({ [ $_, '1', '{}' ] } ' x', "\xc2\xa0", 'x' x 991, "\xc3\xbc" x 495);

sub literal
{
	my ($text) = @_;
	$text =~ s/'/''/g;
	return "'$text'";
}

my $node = PostgreSQL::Test::Cluster->new('keys');
$node->init(extra => [ '--encoding=UTF8', '--no-locale' ]);
$node->start;
my $expected = $node->safe_psql('postgres',
	"CREATE EXTENSION idem_tool; SET client_encoding = 'UTF8'; "
	  . join(' UNION ALL ', map {
		'SELECT idem_key(' . join(', ', map { literal($_) } @$_) . ')'
	  } @actions));
my $error = $node->safe_psql('postgres',
	q{CREATE FUNCTION code_of(operation text, identity text, fields jsonb)
		RETURNS text LANGUAGE plpgsql AS $$
	  BEGIN RETURN idem_key(operation, identity, fields);
	  EXCEPTION WHEN OTHERS THEN RETURN SQLSTATE; END $$;
	  SET client_encoding = 'UTF8'; }
	  . join(' UNION ', map {
		'SELECT code_of(' . join(', ', map { literal($_) } @$_) . ')'
	  } @refused));
is($error, '22023', 'SQL refuses all of them');
$node->stop('fast');
like($expected, qr/^charge_card:024bfa09f722232c800ff9095d3ba39a$/m,
	'the key in the documentation');
like($docs, qr/charge_card:024bfa09f722232c800ff9095d3ba39a/, 'is this');

# Feed the actions, each as three lines of hexadecimal digits, to a program that
# is the documented lines and a loop that uses them
sub try
{
	my ($command, $file, $program, @refused) = @_;
	my ($out, $err);

	PostgreSQL::Test::Utils::append_to_file("$dir/$file", $program);
	PostgreSQL::Test::Utils::append_to_file("$dir/$file.in",
		join('', map { unpack('H*', $_) . "\n" } map { @$_ } @actions, @refused));
  SKIP:
	{
		skip "no $command", 1
		  unless eval { IPC::Run::run([ $command, '--version' ], '>', \$out, '2>', \$err) };
		local $ENV{PYTHONUTF8} = 1;
		IPC::Run::run([ $command, "$dir/$file", "$dir/$file.in" ],
			'>', \$out, '2>', \$err);
		diag($err) if $err;
		chomp $out;
		is($out, join("\n", $expected, map { 'refused' } @refused),
			"$file: $command makes the same keys");
	}
	return;
}

my ($python, $js) = block_by('051_keys', 'docs/keys.md');
my ($lines) = block_by('051_keys', 'docs/reference.md');


my $reading = <<'END';

import json, sys
def actions():
    lines = [bytes.fromhex(line).decode() for line in open(sys.argv[1])]
    return [(*lines[i:i + 2], json.loads(lines[i + 2])) for i in range(0, len(lines), 3)]
END

try('python3', 'keys.py', $python . $reading . <<'END', @refused);
for operation, identity, fields in actions():
    try:
        print(idem_key(operation, identity, **fields))
    except ValueError:
        print("refused")
END

try('python3', 'reference.py', $reading . "for op, id, fields in actions():\n"
	  . $lines =~ s/^/    /gmr . "    print(key)\n");

try('node', 'keys.mjs', $js . <<'END', @refused);

import { readFileSync } from "node:fs";
const lines = readFileSync(process.argv[2], "utf8").trimEnd().split("\n")
  .map((line) => Buffer.from(line, "hex").toString());
for (let i = 0; i < lines.length; i += 3) {
  try {
    console.log(idemKey(lines[i], lines[i + 1], JSON.parse(lines[i + 2])));
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    console.log("refused");
  }
}
END

done_testing();
