/*
 * Write JSON lines {"kind", "input", "canonical"} for run.sh.
 *
 *		node generate.js [documents [numbers [seed]]]
 *
 * kind "document": a random value within the range of doubles in a random
 * spelling; its canonical form comes from the npm package "canonicalize".
 *
 * kind "number": a random decimal that no double need hold; its canonical
 * form is laid out here, straight from the rules of ECMAScript's
 * Number::toString.
 *
 * The same seed gives the same lines.
 */
'use strict';

const assert = require('assert');
const canonicalize = require('canonicalize');

const documents = Number(process.argv[2] || 4000);
const numbers = Number(process.argv[3] || 2000);
let state = Number(process.argv[4] || 8785) >>> 0;

/* mulberry32: small, and the same everywhere */
function random32() {
	state = (state + 0x6d2b79f5) >>> 0;
	let t = state;
	t = Math.imul(t ^ (t >>> 15), t | 1);
	t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
	return (t ^ (t >>> 14)) >>> 0;
}

/* An integer from low to high, both included */
function between(low, high) {
	return low + Math.floor(random32() / 4294967296 * (high - low + 1));
}

function pick(list) {
	return list[between(0, list.length - 1)];
}

function chance(percent) {
	return between(1, 100) <= percent;
}

/* ---- strings ---- */

/*
 * Code point ranges, with those where the orders of UTF-8 and UTF-16 differ
 * more often than chance would have them.  No surrogates and no U+0000,
 * neither of which jsonb can hold.
 */
const ranges = [
	[0x20, 0x7e], [0x61, 0x66], [0x01, 0x1f], [0x22, 0x22], [0x5c, 0x5c],
	[0x2f, 0x2f], [0x7f, 0xa0], [0xc0, 0x24f], [0x300, 0x36f],
	[0x370, 0x7ff], [0x800, 0xd7ff], [0x2028, 0x2029], [0xd7f0, 0xd7ff],
	[0xe000, 0xe010], [0xe000, 0xf8ff], [0xfb00, 0xfb4f], [0xfff0, 0xffff],
	[0x10000, 0x10010], [0x1f600, 0x1f64f], [0x20000, 0x2ffff],
	[0x10fff0, 0x10ffff],
];

function randomString(maxLength) {
	let s = '';

	for (let n = between(0, maxLength); n > 0; n--)
		s += String.fromCodePoint(between(...pick(ranges)));
	return s;
}

const shortEscapes = {
	'\b': '\\b', '\t': '\\t', '\n': '\\n', '\f': '\\f', '\r': '\\r',
	'"': '\\"', '\\': '\\\\', '/': '\\/',
};

function spellUnit(unit) {
	const hex = unit.toString(16).padStart(4, '0');

	return '\\u' + (chance(50) ? hex : hex.toUpperCase());
}

/* A string in quotes, each character literally or by one of its escapes */
function spellString(s) {
	let out = '"';

	for (const c of s) {
		const short = shortEscapes[c];
		const must = c < ' ' || c === '"' || c === '\\';

		if (short && (must ? chance(70) : chance(30)))
			out += short;
		else if (must || chance(15)) {
			for (let i = 0; i < c.length; i++)
				out += spellUnit(c.charCodeAt(i));
		} else
			out += c;
	}
	return out + '"';
}

/* ---- numbers ---- */

const bits = new DataView(new ArrayBuffer(8));

function randomBits() {
	for (;;) {
		bits.setUint32(0, random32());
		bits.setUint32(4, random32());
		const x = bits.getFloat64(0);

		if (Number.isFinite(x))
			return x;
	}
}

function randomDouble() {
	const kind = between(0, 7);

	if (kind === 0)
		return randomBits();
	if (kind === 1)
		return between(-1000, 1000);
	if (kind === 2)
		return between(-1e9, 1e9) / Math.pow(10, between(0, 9));
	if (kind === 3)
		return between(-99, 99) * Math.pow(10, between(-30, 30));
	if (kind === 4)		/* where plain notation ends */
		return Number(between(1, 999) + 'e' + pick([-9, -8, -7, -6, 18, 19, 20, 21]));
	if (kind === 5)
		return between(0, 2097151) * 4294967296 + random32();
	if (kind === 6)
		return (random32() / 4294967296 + random32()) * Math.pow(2, between(-60, 60));
	return pick([0, -0, 5e-324, -5e-324, Number.MAX_VALUE, -Number.MAX_VALUE,
		2.2250738585072014e-308, Number.MAX_SAFE_INTEGER,
		Number.MIN_SAFE_INTEGER, 1e21, 1e-7, 1e-6, 999999999999999900000,
		1e23, 295147905179352830000, 9007199254740992]);
}

/* Sign, digits and the place of the point before them: 0.DIGITS * 10^point */
function decimalOf(x) {
	const [, sign, int, frac, exp] =
		/^(-?)(\d+)(?:\.(\d+))?(?:e([+-]\d+))?$/.exec(String(x));

	return {
		sign: Object.is(x, -0) ? '-' : sign,
		digits: int + (frac || ''),
		point: int.length + Number(exp || 0),
	};
}

/* One of the many spellings of a decimal */
function spellDecimal({ sign, digits, point }) {
	if (chance(30))
		digits += '0'.repeat(between(1, 4));
	const plain = point >= -30 && point <= 60 && chance(60);
	/* where to put the point among the digits; the exponent does the rest */
	let at = plain ? point : between(-2, digits.length + 2);
	const exp = point - at;
	let int, frac;

	if (at <= 0) {
		int = '0';
		frac = '0'.repeat(-at) + digits;
	} else {
		digits = digits.padEnd(at, '0');
		int = digits.slice(0, at).replace(/^0+(?=\d)/, '');
		frac = digits.slice(at);
	}
	let out = sign + int + (frac ? '.' + frac : '');

	if (exp !== 0 || chance(10))
		out += pick(['e', 'E']) + (exp < 0 ? '-' : pick(['', '+'])) + Math.abs(exp);
	return out;
}

/* Number::toString, with any number of digits */
function layDecimal({ sign, digits, point }) {
	const stripped = digits.replace(/^0+/, '');

	point -= digits.length - stripped.length;
	digits = stripped.replace(/0+$/, '');
	if (digits === '')
		return '0';

	const k = digits.length;
	const e = point - 1;

	if (k <= point && point <= 21)
		return sign + digits + '0'.repeat(point - k);
	if (0 < point && point <= 21)
		return sign + digits.slice(0, point) + '.' + digits.slice(point);
	if (-6 < point && point <= 0)
		return sign + '0.' + '0'.repeat(-point) + digits;
	return sign + digits[0] + (k > 1 ? '.' + digits.slice(1) : '') +
		'e' + (e < 0 ? '-' : '+') + Math.abs(e);
}

/* As far as numeric reaches: 131072 digits before the point, 16383 behind */
function randomDecimal() {
	let digits = '';

	for (let n = between(1, pick([1, 5, 20, 60, 400])); n > 0; n--)
		digits += chance(30) ? pick(['0', '9']) : between(0, 9);
	return {
		sign: pick(['', '-']),
		digits,
		point: pick([between(-8, 24), between(-8, 24), between(-400, 400),
			between(-15000, 15000), between(15000, 131000)]),
	};
}

/* ---- documents ---- */

function randomScalar() {
	const kind = between(0, 9);

	if (kind < 4)
		return randomDouble();
	if (kind < 8)
		return randomString(pick([0, 3, 12, 80]));
	return pick([null, true, false, '', 0]);
}

function randomObject(depth) {
	/* no prototype, so that __proto__ is a name like any other */
	const object = Object.create(null);
	/* names that begin alike are told apart late */
	const stem = chance(40) ? randomString(4) : '';

	for (let n = between(0, pick([2, 6, 40])); n > 0; n--) {
		const name = chance(3) ? pick(['__proto__', 'length', 'constructor'])
			: stem + randomString(pick([1, 2, 8]));

		object[name] = randomValue(depth - 1);
	}
	return object;
}

function randomValue(depth) {
	const kind = depth > 0 ? between(0, 9) : 0;

	if (kind < 4)
		return randomScalar();
	if (kind < 7)
		return Array.from({ length: between(0, pick([1, 3, 10])) },
			() => randomValue(depth - 1));
	return randomObject(depth);
}

function blank() {
	return chance(10) ? ' \t\n\r'.slice(between(0, 3)) : '';
}

function spell(value) {
	let out;

	if (typeof value === 'number')
		out = spellDecimal(decimalOf(value));
	else if (typeof value === 'string')
		out = spellString(value);
	else if (Array.isArray(value))
		out = '[' + (value.map(spell).join(',') || blank()) + ']';
	else if (value !== null && typeof value === 'object') {
		const members = Object.keys(value).map((name) =>
			blank() + spellString(name) + blank() + ':' + spell(value[name]));

		/* in any order, now and then a member twice: the last one counts */
		for (let i = members.length - 1; i > 0; i--) {
			const j = between(0, i);
			[members[i], members[j]] = [members[j], members[i]];
		}
		if (members.length > 0 && chance(10))
			members.unshift(spellString(pick(Object.keys(value))) + ':"twice"');
		out = '{' + (members.join(',') || blank()) + '}';
	} else
		out = String(value);
	return blank() + out + blank();
}

function line(kind, input, canonical) {
	process.stdout.write(JSON.stringify({ kind, input, canonical }) + '\n');
}

for (let i = 0; i < documents; i++) {
	const value = i % 50 === 49
		? Array.from({ length: 300 }).reduce((v) => chance(50) ? [v] : { '': v },
			randomScalar())		/* deep */
		: randomValue(between(0, 4));
	const canonical = canonicalize(value);
	const input = spell(value);

	assert.strictEqual(canonicalize(JSON.parse(input)), canonical,
		'the spelling changed the value');
	line('document', input, canonical);
}
for (let i = 0; i < numbers; i++) {
	const decimal = randomDecimal();

	line('number', spellDecimal(decimal), layDecimal(decimal));
}
