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
$node->stop('fast');
like($expected, qr/^charge_card:024bfa09f722232c800ff9095d3ba39a$/m,
	'the key in the documentation');
like($docs, qr/charge_card:024bfa09f722232c800ff9095d3ba39a/, 'is this');

# Feed the actions, one a line, to a program that is the documented lines and a
# loop that uses them
sub try
{
	my ($command, $file, $program) = @_;
	my ($out, $err);

	PostgreSQL::Test::Utils::append_to_file("$dir/$file", $program);
	foreach (@actions)
	{
		PostgreSQL::Test::Utils::append_to_file("$dir/$file.in",
			join("\t", @$_) . "\n");
	}
  SKIP:
	{
		skip "no $command", 1
		  unless eval { IPC::Run::run([ $command, '--version' ], '>', \$out, '2>', \$err) };
		local $ENV{PYTHONUTF8} = 1;
		IPC::Run::run([ $command, "$dir/$file", "$dir/$file.in" ],
			'>', \$out, '2>', \$err);
		diag($err) if $err;
		chomp $out;
		is($out, $expected, "$file: $command makes the same keys");
	}
	return;
}

my ($python, $js) = block_by('051_keys', 'docs/keys.md');
my ($lines) = block_by('051_keys', 'docs/reference.md');

try('python3', 'keys.py', $python . <<'END');

import sys
for line in open(sys.argv[1], newline="\n"):
    operation, identity, fields = line.rstrip("\n").split("\t")
    print(idem_key(operation, identity, **json.loads(fields)))
END

try('python3', 'reference.py', <<'END' . $lines =~ s/^/    /gmr . "    print(key)\n");
import json, sys
for line in open(sys.argv[1], newline="\n"):
    op, id, fields = line.rstrip("\n").split("\t")
    fields = json.loads(fields)
END

try('node', 'keys.mjs', $js . <<'END');

import { readFileSync } from "node:fs";
for (const line of readFileSync(process.argv[2], "utf8").trimEnd().split("\n")) {
  const [operation, identity, fields] = line.split("\t");
  console.log(idemKey(operation, identity, JSON.parse(fields)));
}
END

done_testing();
