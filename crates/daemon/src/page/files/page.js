// The page's script. It asks API v1 in JSON for what it shows, and makes elements, never markup
// out of text: what a NIC is called can do nothing here.

const EVERY_MS = 4000;
const ROWS = 200;
const COLOURS = 5;

// The token, from the link that the page was opened by; it stays in this tab.
if (/^#[^/]/.test(location.hash) && location.hash !== '#main') {
  sessionStorage.setItem('token', location.hash.slice(1));
  history.replaceState(null, '', '#/');
}

class Refused extends Error {}

async function ask(path, options = {}) {
  const token = sessionStorage.getItem('token');
  const headers = { ...options.headers };
  if (token) headers.Authorization = `Bearer ${token}`;
  const answer = await fetch(path, { ...options, headers });
  const said = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Refused(said.error || `HTTP ${answer.status}`);
  return said;
}

const call = (service, method, request = {}) =>
  ask(`/api/butterfly.v1.${service}/${method}`, {
    method: 'POST',
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify(request),
  });
const butterfly = (method, request) => call('Butterfly', method, request);

// One more than is shown, to know whether there are more.
const FLOWS = 1999;
async function listFlows(request = {}) {
  const { list } = await butterfly('ListFlows', { ...request, most: FLOWS + 1 });
  return { list: list.slice(0, FLOWS), more: list.length > FLOWS };
}

// An element: h('td', {class: 'n'}, …). Children are elements, texts, or lists of them.
function h(name, attributes, ...children) {
  const svg = ['svg', 'path', 'line', 'title'].includes(name) && name !== 'title';
  const made = svg ? document.createElementNS('http://www.w3.org/2000/svg', name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith('on')) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true ? '' : value);
  }
  made.append(...children.flat(Infinity).filter((one) => one !== undefined && one !== null && one !== false));
  return made;
}

const link = (text, ...parts) => h('a', { href: '#/' + parts.map(encodeURIComponent).join('/') }, text);

// Numbers for people.
function short(value, unit = '') {
  const steps = [[1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e3, 'k']];
  const [by, letter] = steps.find(([by]) => Math.abs(value) >= by) || [1, ''];
  const scaled = value / by;
  const digits = Math.abs(scaled) >= 100 || (by === 1 && Number.isInteger(value)) ? 0 : 1;
  return `${scaled.toFixed(digits)}${letter || unit ? ' ' : ''}${letter}${unit}`;
}
const percent = (share) => `${(share * 100).toFixed(share < 0.1 ? 1 : 0)} %`;
function time(secs) {
  const units = [[86400, 'd'], [3600, 'h'], [60, 'min'], [1, 's']];
  const at = units.findIndex(([length]) => secs >= length);
  if (at < 0) return '0 s';
  const [length, unit] = units[at];
  const rest = units[at + 1] && Math.floor((secs % length) / units[at + 1][0]);
  return `${Math.floor(secs / length)} ${unit}${rest ? ` ${rest} ${units[at + 1][1]}` : ''}`;
}

const PROTOCOLS = { 1: 'icmp', 6: 'tcp', 17: 'udp', 47: 'gre', 58: 'icmpv6', 132: 'sctp' };
const protocol = (number) => PROTOCOLS[number] || `protocol ${number}`;
const lower = (name, prefix) => (name || '').replace(prefix, '').toLowerCase().replaceAll('_', ' ');

function portsOf(rule) {
  if (rule.ports) {
    const { start = 0, end = 0 } = rule.ports;
    return start === end ? `${start}` : `${start}-${end}`;
  }
  if (rule.icmp) {
    const { type, code } = rule.icmp;
    return [type !== undefined && `type ${type}`, code !== undefined && `code ${code}`].filter(Boolean).join(' ');
  }
  return '';
}
function whatOf(rule) {
  const name = rule.protocol === undefined ? 'everything' : protocol(rule.protocol);
  return `${name} ${portsOf(rule)}`.trim();
}
const peerOf = (rule) => (rule.group ? `group ${rule.group}` : rule.cidr || 'anywhere');
const isEgress = (rule) => rule.direction === 'DIRECTION_EGRESS';
const ruleText = (rule) => `${isEgress(rule) ? 'out' : 'in'} ${whatOf(rule)} ${isEgress(rule) ? 'to' : 'from'} ${peerOf(rule)}`;

// A table. Columns: {name, n: a number's, of: row → what is shown, by: row → what is sorted by}.
// With a key its order, filter and length are kept while the page is refreshed.
const tables = new Map();
function table(columns, rows, { key, filter, none = 'none' } = {}) {
  const kept = tables.get(key) || { sort: undefined, down: true, text: '', most: ROWS };
  if (key) tables.set(key, kept);
  const box = h('div', {});
  const draw = () => {
    let shown = rows;
    const words = kept.text.toLowerCase().split(/\s+/).filter(Boolean);
    if (filter && words.length) {
      shown = shown.filter((row) => {
        const text = filter(row).toLowerCase();
        return words.every((word) => text.includes(word));
      });
    }
    const by = columns[kept.sort]?.by;
    if (by) {
      const sign = kept.down ? -1 : 1;
      shown = [...shown].sort((a, b) => {
        const [x, y] = [by(a), by(b)];
        return sign * (typeof x === 'string' ? x.localeCompare(y, 'en', { numeric: true }) : x - y);
      });
    }
    const head = columns.map((column, index) => {
      const sorted = kept.sort === index;
      const turn = () => {
        kept.down = sorted ? !kept.down : !!column.n;
        kept.sort = index;
        draw();
      };
      const label = column.by ? h('button', { type: 'button', onclick: turn }, column.name, sorted ? (kept.down ? ' ↓' : ' ↑') : '') : column.name;
      return h('th', { class: column.n && 'n', scope: 'col', 'aria-sort': sorted ? (kept.down ? 'descending' : 'ascending') : undefined }, label);
    });
    const body = shown.slice(0, kept.most).map((row) =>
      h('tr', {}, columns.map((column) => h('td', { class: column.class || (column.n && 'n') }, column.of(row)))));
    const more = shown.length - body.length;
    const hidden = more > 0 && h('p', {}, h('button', { class: 'act', type: 'button', onclick: () => { kept.most += 1000; draw(); } }, `${more} more`));
    box.replaceChildren(
      ...(body.length ? [h('div', { class: 'scroll' }, h('table', {}, h('thead', {}, h('tr', {}, head)), h('tbody', {}, body)))] : [h('p', { class: 'none' }, none)]),
      ...(hidden ? [hidden] : []),
    );
    count.textContent = filter ? `${shown.length} of ${rows.length}` : '';
  };
  const count = h('span', { class: 'soft' });
  const input = filter && h('input', {
    type: 'search', placeholder: 'filter', 'aria-label': 'filter', value: kept.text, id: `filter-${key}`,
    oninput: (event) => { kept.text = event.target.value; kept.most = ROWS; draw(); },
  });
  draw();
  return h('div', {}, filter && h('div', { class: 'tools' }, input, count), box);
}

// A chart: series are {name, values}, oldest first; `unit` is that of what is shown.
function chart(title, series, format, step) {
  const most = Math.max(...series.flatMap((one) => one.values), 0) || 1;
  // A single sample is a line, not a point.
  series = series.map((one) => (one.values.length === 1 ? { ...one, values: [one.values[0], one.values[0]] } : one));
  const length = Math.max(...series.map((one) => one.values.length), 2);
  const paths = series.map((one, index) => {
    const points = one.values.map((value, n) =>
      `${((n + length - one.values.length) / (length - 1) * 1000).toFixed(1)},${(98 - (value / most) * 94).toFixed(2)}`);
    return h('path', { class: `c${index % COLOURS}`, d: points.length ? `M${points.join('L')}` : '' });
  });
  const now = (one) => (one.values.length ? format(one.values[one.values.length - 1]) : 'not known yet');
  const told = series.map((one, index) => h('span', {}, h('span', { class: `swatch c${index % COLOURS}` }, one.name), ' ', h('b', {}, now(one))));
  return h('figure', {},
    h('figcaption', {}, h('b', {}, title), told, h('span', {}, `at most ${format(series.some((one) => one.values.length) ? most : 0)} in ${time(Math.max(length - 1, 0) * step)}`)),
    h('svg', { class: 'chart', viewBox: '0 0 1000 100', preserveAspectRatio: 'none', role: 'img', 'aria-label': title },
      h('line', { x1: 0, x2: 1000, y1: 98, y2: 98 }), paths));
}

const card = (value, name, kind) => h('div', { class: 'card' }, h('b', { class: kind }, value), h('span', {}, name));
const facts = (rows) => h('dl', {}, rows.filter(([, value]) => value !== undefined && value !== '' && value !== null).flatMap(([name, value]) => [h('dt', {}, name), h('dd', {}, value)]));
const listed = (links) => links.flatMap((one, index) => (index ? [', ', one] : [one]));
const stateOf = (status) => {
  const name = lower(status.state, 'PORT_STATE_') || 'unknown';
  return h('span', { class: { up: 'good', broken: 'bad' }[name] || 'soft', title: status.detail }, name);
};

// Rates between this answer and the one before, by the daemon's clock.
let before;
function rates(stats) {
  const old = before;
  before = { at: stats.time_ns, nics: new Map((stats.nics || []).map((nic) => [nic.id, nic])) };
  const secs = old && (stats.time_ns - old.at) / 1e9;
  return (id, field) => {
    const [now, then] = [before.nics.get(id), old?.nics.get(id)];
    return now && then && secs > 0.1 ? Math.max(0, ((now[field] || 0) - (then[field] || 0)) / secs) : 0;
  };
}

const views = {
  async host() {
    const [status, past, workers, drops, uplinks] = await Promise.all([
      butterfly('GetStatus'), ask('/history'), butterfly('ListWorkers'), butterfly('ListDrops'), butterfly('ListUplinks')]);
    document.title = `Butterfly ${status.version}`;
    const last = (values) => values[values.length - 1] || 0;
    const byReason = Object.entries(past.drops).sort(([, a], [, b]) => last(b) - last(a) || b.length - a.length).slice(0, COLOURS);
    const step = past.step_secs;
    return [
      h('h1', {}, 'This host'),
      (status.warnings || []).map((warning) => h('p', { class: 'warn' }, warning)),
      h('div', { class: 'cards' },
        card(status.nics || 0, 'NICs'), card(status.networks || 0, 'networks'), card(status.groups || 0, `groups, ${status.rules || 0} rules`),
        card(status.remote_endpoints || 0, 'other hosts'), card(short(last(past.flows)), 'connections'),
        card(percent(last(past.busy)), 'of the workers is busy'), card(time(status.uptime_secs || 0), `up, version ${status.version}`)),
      h('div', { class: 'charts' },
        chart('Traffic', [
          { name: 'from guests', values: past.egress_bytes.map((bytes) => bytes * 8) },
          { name: 'to guests', values: past.ingress_bytes.map((bytes) => bytes * 8) }], (value) => short(value, 'bit/s'), step),
        chart('Frames', [{ name: 'from guests', values: past.egress_frames }, { name: 'to guests', values: past.ingress_frames }], (value) => short(value, '/s'), step),
        chart('Drops', byReason.length ? byReason.map(([name, values]) => ({ name, values })) : [{ name: 'none', values: past.at.map(() => 0) }], (value) => short(value, '/s'), step),
        chart('Workers', [{ name: 'busy', values: past.busy }], percent, step)),
      h('h2', {}, 'Workers'),
      table([
        { name: 'worker', of: (one) => one.index || 0 },
        { name: 'core', of: (one) => one.core ?? 'any' },
        { name: 'load', n: true, of: (one) => `${one.load_percent || 0} %` },
        { name: 'frames', n: true, of: (one) => short(one.frames || 0) },
        { name: 'connections', n: true, of: (one) => `${short(one.flows || 0)} of ${short(one.max_flows || 0)}` },
        { name: 'queues', n: true, of: (one) => (one.queues || []).length },
      ], workers.workers || []),
      h('h2', {}, 'Uplinks'),
      table([
        { name: 'interface', of: (one) => one.interface },
        { name: 'state', of: (one) => h('span', { class: one.joined ? 'good' : 'bad' }, one.joined ? one.mode : one.why || 'not joined') },
        { name: 'addresses', class: 'mono', of: (one) => (one.addresses || []).join(' ') },
        { name: 'received', n: true, of: (one) => short(one.received_bytes || 0, 'B') },
        { name: 'sent', n: true, of: (one) => short(one.sent_bytes || 0, 'B') },
      ], uplinks.uplinks || [], { none: 'no interface joins this host to others' }),
      h('h2', {}, 'What was dropped most'),
      dropTable((drops.totals || []).sort((a, b) => b.frames - a.frames).slice(0, 8)),
    ];
  },

  async nics() {
    const [nics, stats] = await Promise.all([butterfly('ListNics'), butterfly('ListNicStats')]);
    const rate = rates(stats);
    const of = new Map((stats.nics || []).map((one) => [one.id, one]));
    const drops = (row) => (of.get(row.nic.id)?.ingress_drops || 0) + (of.get(row.nic.id)?.egress_drops || 0);
    const bits = (row, field) => rate(row.nic.id, field) * 8;
    return [
      h('h1', {}, 'NICs'),
      table([
        { name: 'NIC', of: (row) => link(row.nic.id, 'nic', row.nic.id), by: (row) => row.nic.id },
        { name: 'state', of: stateOf, by: (row) => row.state || '' },
        { name: 'network', n: true, of: (row) => link(row.nic.vni || 0, 'network', row.nic.vni || 0), by: (row) => row.nic.vni || 0 },
        { name: 'addresses', class: 'mono', of: (row) => (row.nic.addresses || []).join(' ') },
        { name: 'sends', n: true, of: (row) => short(bits(row, 'egress_bytes'), 'bit/s'), by: (row) => bits(row, 'egress_bytes') },
        { name: 'receives', n: true, of: (row) => short(bits(row, 'ingress_bytes'), 'bit/s'), by: (row) => bits(row, 'ingress_bytes') },
        { name: 'connections', n: true, of: (row) => short(of.get(row.nic.id)?.flows || 0), by: (row) => of.get(row.nic.id)?.flows || 0 },
        { name: 'dropped', n: true, of: (row) => short(drops(row)), by: drops },
      ], nics.nics || [], {
        key: 'nics', none: 'no NIC', filter: ({ nic, state }) =>
          [nic.id, nic.mac, `vni ${nic.vni}`, lower(state, 'PORT_STATE_'), ...(nic.addresses || []), ...(nic.security_groups || [])].join(' '),
      }),
    ];
  },

  async nic(id) {
    const [status, drops, flows, past] = await Promise.all([
      butterfly('GetNic', { id }), butterfly('ListDrops', { nic: id }), listFlows({ nic: id }),
      ask(`/history?${encodeURIComponent(id)}`).catch(() => undefined)]);
    const nic = status.nic;
    const groups = (nic.security_groups || []).map((group) => link(group, 'group', group));
    const missing = status.missing_security_groups || [];
    return [
      h('h1', {}, `NIC ${id}`),
      facts([
        ['state', h('span', {}, stateOf(status), status.detail ? ` ${status.detail}` : '')],
        ['kind', lower(nic.kind, 'NIC_KIND_')],
        ['MAC', h('span', { class: 'mono' }, nic.mac)],
        ['addresses', h('span', { class: 'mono' }, (nic.addresses || []).join(' ') || 'any')],
        ['network', link(nic.vni || 0, 'network', nic.vni || 0)],
        ['groups', groups.length ? h('span', {}, listed(groups)) : 'none: nothing is let in or out'],
        ['missing groups', missing.length ? h('span', { class: 'bad' }, missing.join(' ')) : undefined],
        ['filtering', nic.bypass_filtering ? h('span', { class: 'warn' }, 'bypassed') : undefined],
        ['MTU', status.mtu],
        ['socket or device', status.path && h('span', { class: 'mono' }, status.path)],
        ['', h('a', { href: `#/trace/${encodeURIComponent(id)}` }, 'would a packet of it pass?')],
      ]),
      past && h('div', { class: 'charts' },
        chart('Traffic', [{ name: 'sends', values: past.egress_bits }, { name: 'receives', values: past.ingress_bits }], (value) => short(value, 'bit/s'), past.step_secs),
        chart('Drops', [{ name: 'frames', values: past.drops }], (value) => short(value, '/s'), past.step_secs)),
      h('h2', {}, 'Dropped'),
      dropTable(drops.drops || []),
      h('h2', {}, 'Connections'),
      flowTable(flows, `flows-of-${id}`),
    ];
  },

  async networks() {
    const { list, more } = await butterfly('ListNetworks');
    return [
      h('h1', {}, 'Networks'),
      table([
        { name: 'VNI', n: true, of: (row) => link(row.network.vni || 0, 'network', row.network.vni || 0), by: (row) => row.network.vni || 0 },
        { name: 'NICs', n: true, of: (row) => row.nics || 0, by: (row) => row.nics || 0 },
        { name: 'other hosts', n: true, of: (row) => row.endpoints || 0, by: (row) => row.endpoints || 0 },
        { name: 'bindings', n: true, of: (row) => row.bindings || 0, by: (row) => row.bindings || 0 },
        { name: 'learns', of: (row) => (row.learning ? 'yes' : 'no') },
        { name: 'floods', of: (row) => lower(row.flood, 'FLOOD_') },
        { name: 'hears', of: (row) => (row.from_anybody ? h('span', { class: 'warn' }, 'anybody') : 'its hosts') },
      ], list, { key: 'networks', none: 'no network', filter: (row) => `${row.network.vni}` }),
      more && h('p', { class: 'soft' }, `These are the first ${list.length}.`),
    ];
  },

  async network(vni) {
    const [network, nics, flows, groups] = await Promise.all([
      butterfly('GetNetwork', { vni: Number(vni) }), butterfly('ListNics'), listFlows(), butterfly('ListGroups')]);
    const here = (nics.nics || []).filter(({ nic }) => (nic.vni || 0) === Number(vni));
    const ids = new Set(here.map(({ nic }) => nic.id));
    const pairs = new Map();
    for (const flow of flows.list.filter((flow) => ids.has(flow.nic))) {
      // Of a flow between two NICs each has its own view: the initiator's is counted.
      if (flow.peer_nic && flow.direction !== 'DIRECTION_EGRESS') continue;
      const outward = flow.direction === 'DIRECTION_EGRESS';
      const other = flow.peer_nic || (outward ? flow.destination : flow.source);
      const [from, to] = outward ? [flow.nic, other] : [other, flow.nic];
      const pair = pairs.get(`${from} ${to}`) || { from, to, flows: 0, bytes: 0 };
      pair.flows += 1;
      pair.bytes += (flow.original_bytes || 0) + (flow.reply_bytes || 0);
      pairs.set(`${from} ${to}`, pair);
    }
    const name = (who) => (ids.has(who) ? link(who, 'nic', who) : h('span', { class: 'mono' }, who));
    const used = new Set(here.flatMap(({ nic }) => nic.security_groups || []));
    return Object.assign([
      h('h1', {}, `Network ${vni}`),
      facts([
        ['NICs here', here.length],
        ['other hosts', (network.endpoint_addresses || []).join(' ')],
        ['bindings', network.bindings],
        ['learning', network.learning ? 'on' : 'off'],
        ['flood', lower(network.flood, 'FLOOD_')],
        ['VXLAN is taken from', network.from_anybody ? h('span', { class: 'warn' }, 'anybody') : 'its hosts'],
      ]),
      h('h2', {}, 'Who talks to whom'),
      table([
        { name: 'from', of: (row) => name(row.from), by: (row) => row.from },
        { name: 'to', of: (row) => name(row.to), by: (row) => row.to },
        { name: 'connections', n: true, of: (row) => row.flows, by: (row) => row.flows },
        { name: 'bytes', n: true, of: (row) => short(row.bytes, 'B'), by: (row) => row.bytes },
      ], [...pairs.values()], { key: 'pairs', none: 'nobody', filter: (row) => `${row.from} ${row.to}` }),
      flows.more && h('p', { class: 'soft' }, `Of the first ${flows.list.length} connections of this host.`),
      h('h2', {}, 'Who may talk to whom'),
      allowed((groups.groups || []).filter((group) => used.has(group.id))),
      h('h2', {}, 'NICs'),
      table([
        { name: 'NIC', of: (row) => link(row.nic.id, 'nic', row.nic.id), by: (row) => row.nic.id },
        { name: 'state', of: stateOf, by: (row) => row.state || '' },
        { name: 'addresses', class: 'mono', of: (row) => (row.nic.addresses || []).join(' ') },
        { name: 'groups', of: (row) => (row.nic.security_groups || []).join(', ') },
      ], here, { key: `nics-of-${vni}`, filter: ({ nic }) => [nic.id, ...(nic.addresses || []), ...(nic.security_groups || [])].join(' ') }),
    ], { still: flows.more });
  },

  async groups() {
    const [{ groups = [] }, { counters = [] }, { nics = [] }] = await Promise.all([
      butterfly('ListGroups'), butterfly('ListRuleCounters'), butterfly('ListNics')]);
    const hits = new Map();
    const never = new Map();
    for (const one of counters) {
      hits.set(one.group, (hits.get(one.group) || 0) + (one.frames || 0));
      if (!one.frames) never.set(one.group, (never.get(one.group) || 0) + 1);
    }
    const members = new Map();
    for (const { nic } of nics) for (const group of nic.security_groups || []) members.set(group, (members.get(group) || 0) + 1);
    return [
      h('h1', {}, 'Security groups'),
      table([
        { name: 'group', of: (row) => link(row.id, 'group', row.id), by: (row) => row.id },
        { name: 'NICs', n: true, of: (row) => members.get(row.id) || 0, by: (row) => members.get(row.id) || 0 },
        { name: 'rules', n: true, of: (row) => (row.rules || []).length, by: (row) => (row.rules || []).length },
        { name: 'frames allowed', n: true, of: (row) => short(hits.get(row.id) || 0), by: (row) => hits.get(row.id) || 0 },
        { name: 'rules never hit', n: true, of: (row) => never.get(row.id) || 0, by: (row) => never.get(row.id) || 0 },
      ], groups, { key: 'groups', none: 'no group', filter: (row) => row.id }),
      h('h2', {}, 'Who may talk to whom'),
      allowed(groups),
    ];
  },

  async group(id) {
    const [group, { counters = [] }, { nics = [] }] = await Promise.all([
      butterfly('GetGroup', { id }), butterfly('ListRuleCounters'), butterfly('ListNics')]);
    const own = counters.filter((one) => one.group === id);
    const members = nics.filter(({ nic }) => (nic.security_groups || []).includes(id));
    return [
      h('h1', {}, `Group ${id}`),
      facts([
        ['NICs', members.length ? h('span', {}, listed(members.slice(0, 50).map(({ nic }) => link(nic.id, 'nic', nic.id))), members.length > 50 ? ` and ${members.length - 50} more` : '') : 'none'],
        ['addresses', (group.members || []).join(' ')],
      ]),
      h('h2', {}, 'Rules'),
      table([
        { name: 'direction', of: ({ rule }) => (isEgress(rule) ? 'out' : 'in'), by: ({ rule }) => rule.direction || '' },
        { name: 'what', of: ({ rule }) => whatOf(rule), by: ({ rule }) => whatOf(rule) },
        { name: 'with', of: ({ rule }) => (rule.group ? link(`group ${rule.group}`, 'group', rule.group) : peerOf(rule)), by: ({ rule }) => peerOf(rule) },
        { name: 'connections', n: true, of: (row) => short(row.flows || 0), by: (row) => row.flows || 0 },
        { name: 'frames', n: true, of: (row) => (row.frames ? short(row.frames) : h('span', { class: 'warn' }, 'never')), by: (row) => row.frames || 0 },
        { name: 'bytes', n: true, of: (row) => short(row.bytes || 0, 'B'), by: (row) => row.bytes || 0 },
      ], own, { key: `rules-of-${id}`, none: 'no rule: it allows nothing', filter: ({ rule }) => ruleText(rule) }),
    ];
  },

  async flows() {
    const flows = await listFlows();
    return Object.assign([h('h1', {}, 'Connections'), flowTable(flows, 'flows')], { still: flows.more });
  },

  async drops() {
    const { totals = [], drops = [] } = await butterfly('ListDrops');
    return [
      h('h1', {}, 'Drops'),
      h('h2', {}, 'By reason'), dropTable(totals),
      h('h2', {}, 'By NIC'), dropTable(drops, 'drops'),
    ];
  },

  async services() {
    const { services = [] } = await call('Balancer', 'ListServices');
    const title = ({ key }) => `${key.vip}${key.all_ports ? '' : `:${key.port || 0}`} ${protocol(key.protocol)}`;
    return [
      h('h1', {}, 'Services'),
      services.length === 0 && h('p', { class: 'none' }, 'no service'),
      services.map((status) => [
        h('h2', {}, title(status.service)),
        h('p', { class: status.in_service ? 'good' : 'bad' }, `${status.in_service ? 'in service' : 'out of service'}: ${status.healthy || 0} of ${(status.servers || []).length} servers healthy`),
        table([
          { name: 'server', class: 'mono', of: (row) => row.server.address },
          { name: 'health', of: (row) => {
            const name = lower(row.health, 'HEALTH_') || 'not checked';
            return h('span', { class: { healthy: 'good', unhealthy: 'bad' }[name] || 'soft' }, name, row.detail ? `: ${row.detail}` : '');
          } },
          { name: 'reached', of: (row) => (row.unreachable ? h('span', { class: 'bad' }, row.unreachable) : row.interface || '') },
          { name: 'weight', n: true, of: (row) => row.server.weight ?? 1 },
          { name: 'connections', n: true, of: (row) => short(row.counters?.flows || 0) },
          { name: 'packets', n: true, of: (row) => short(row.counters?.packets || 0) },
          { name: 'bytes', n: true, of: (row) => short(row.counters?.bytes || 0, 'B') },
        ], status.servers || [], { none: 'no server' }),
      ]),
    ];
  },

  async router() {
    const status = await call('Router', 'GetRouterStatus').catch((error) => {
      if (error instanceof Refused) return { off: error.message };
      throw error;
    });
    if (status.off) return [h('h1', {}, 'Router'), h('p', { class: 'none' }, status.off)];
    const flat = (value) => Object.entries(value || {}).filter(([, one]) => typeof one === 'number').map(([name, one]) => `${short(one)} ${name.replaceAll('_', ' ')}`).join(', ');
    return [
      h('h1', {}, 'Router'),
      (status.notes || []).map((note) => h('p', { class: 'warn' }, note)),
      table([
        { name: 'interface', of: (row) => row.interface?.name || '' },
        { name: 'mode', of: (row) => lower(row.interface?.mode, /^.*MODE_/) },
        { name: 'IPv4', of: (row) => flat(row.ipv4) || 'nothing yet' },
        { name: 'IPv6', of: (row) => flat(row.ipv6) || 'nothing yet' },
      ], status.interfaces || [], { none: 'no interface' }),
    ];
  },

  async trace(id = '') {
    const { nics = [] } = await butterfly('ListNics');
    const result = h('div', { 'aria-live': 'polite' });
    const field = (name, attributes) => h('label', {}, attributes.label, h('input', { name, ...attributes, label: undefined }));
    const send = async (event) => {
      event.preventDefault();
      const given = Object.fromEntries(new FormData(event.target));
      const number = Number(given.protocol);
      const headers = { protocol: number, destination: given.destination };
      if (given.source) headers.source = given.source;
      if (given.port) headers.destination_port = Number(given.port);
      try {
        result.replaceChildren(...verdict(await butterfly('GetTrace', { nic: given.nic, headers })));
      } catch (error) {
        result.replaceChildren(h('p', { class: 'bad' }, error.message));
      }
    };
    return Object.assign([
      h('h1', {}, 'Would it pass?'),
      h('form', { class: 'trace', onsubmit: send },
        h('label', {}, 'from NIC', h('input', { name: 'nic', required: true, list: 'nics', value: id }), h('datalist', { id: 'nics' }, nics.slice(0, 2000).map(({ nic }) => h('option', { value: nic.id })))),
        h('label', {}, 'protocol', h('select', { name: 'protocol' }, [6, 17, 1, 58].map((number) => h('option', { value: number }, protocol(number))))),
        field('destination', { label: 'to address', required: true, placeholder: '10.0.0.2' }),
        field('port', { label: 'port', type: 'number', min: 0, max: 65535, placeholder: '443' }),
        field('source', { label: 'from address', placeholder: "the NIC's" }),
        h('button', { class: 'act' }, 'trace')),
      result,
    ], { still: true });
  },
};

function dropTable(drops, key) {
  return table([
    { name: 'reason', of: (row) => h('span', { title: row.description }, row.reason), by: (row) => row.reason },
    ...(drops.some((row) => row.nic) ? [{ name: 'NIC', of: (row) => (row.nic ? link(row.nic, 'nic', row.nic) : ''), by: (row) => row.nic || '' }] : []),
    { name: 'direction', of: (row) => (row.direction === 'DIRECTION_EGRESS' ? 'from the guest' : 'to the guest') },
    { name: 'frames', n: true, of: (row) => short(row.frames || 0), by: (row) => row.frames || 0 },
    { name: 'what it is', class: 'soft', of: (row) => row.description },
  ], drops, { key, none: 'nothing was dropped', filter: key && ((row) => `${row.reason} ${row.nic}`) });
}

function flowTable(flows, key) {
  const end = (address, port) => (port ? (address.includes(':') ? `[${address}]:${port}` : `${address}:${port}`) : address);
  const rule = (row) => [row.egress_rule, row.ingress_rule].filter((one) => one?.group).map((one) => one.group).join(', ');
  return h('div', {}, table([
    { name: 'NIC', of: (row) => link(row.nic, 'nic', row.nic), by: (row) => row.nic },
    { name: '', of: (row) => (row.direction === 'DIRECTION_EGRESS' ? 'out' : 'in') },
    { name: 'protocol', of: (row) => protocol(row.protocol || 0), by: (row) => row.protocol || 0 },
    { name: 'from', class: 'mono', of: (row) => end(row.source || '', row.source_port), by: (row) => row.source || '' },
    { name: 'to', class: 'mono', of: (row) => end(row.destination || '', row.destination_port), by: (row) => row.destination || '' },
    { name: 'state', of: (row) => row.state || '', by: (row) => row.state || '' },
    { name: 'groups', of: rule },
    { name: 'age', n: true, of: (row) => time(row.age_secs || 0), by: (row) => row.age_secs || 0 },
    { name: 'bytes', n: true, of: (row) => short((row.original_bytes || 0) + (row.reply_bytes || 0), 'B'), by: (row) => (row.original_bytes || 0) + (row.reply_bytes || 0) },
  ], flows.list, {
    key, none: 'no connection',
    filter: (row) => [row.nic, row.peer_nic, protocol(row.protocol || 0), row.source, row.source_port, row.destination, row.destination_port, row.state, rule(row)].join(' '),
  }), flows.more && h('p', { class: 'soft' }, `These are the first ${flows.list.length}; butterfly flows list has all of them.`));
}

// Who may open connections to whom: the rules of groups, by source.
function allowed(groups) {
  const rows = groups.flatMap((group) => (group.rules || []).map((rule) => ({ group: group.id, rule })));
  return table([
    { name: 'from', of: ({ group, rule }) => (isEgress(rule) ? link(`group ${group}`, 'group', group) : rule.group ? link(`group ${rule.group}`, 'group', rule.group) : peerOf(rule)), by: ({ group, rule }) => (isEgress(rule) ? group : peerOf(rule)) },
    { name: 'to', of: ({ group, rule }) => (isEgress(rule) ? peerOf(rule) : link(`group ${group}`, 'group', group)), by: ({ group, rule }) => (isEgress(rule) ? peerOf(rule) : group) },
    { name: 'what', of: ({ rule }) => whatOf(rule), by: ({ rule }) => whatOf(rule) },
    { name: 'said by', of: ({ group, rule }) => `${isEgress(rule) ? 'an outward' : 'an inward'} rule of ${group}` },
  ], rows, { key: 'allowed', none: 'nobody: no rule allows anything', filter: ({ group, rule }) => `${group} ${ruleText(rule)}` });
}

function verdict(trace) {
  const steps = (list = []) => h('ol', { class: 'steps' }, list.map((step) => h('li', { class: step.refused && 'bad' }, h('b', {}, step.step), ' ', step.text)));
  const remedies = (list = []) => list.length > 0 && [h('p', {}, 'What would let it pass:'), h('ul', {}, list.map((one) => h('li', { class: 'mono' }, one)))];
  const targets = trace.targets || [];
  return [
    h('p', { class: `verdict ${trace.passes ? 'good' : 'bad'}`, id: 'verdict' }, trace.passes ? 'It passes.' : `It is dropped: ${trace.reason || targets.find((one) => one.reason)?.reason || 'nobody would get it'}`),
    trace.description && h('p', {}, trace.description),
    steps(trace.steps),
    targets.length !== 1 && remedies(trace.remedies),
    targets.map((target) => [
      h('h2', {}, target.nic ? ['to NIC ', link(target.nic, 'nic', target.nic)] : target.endpoint ? `to host ${target.endpoint}` : 'to all hosts'),
      h('p', { class: target.passes ? 'good' : 'bad' }, target.passes ? 'passes' : target.waits ? 'waits' : `dropped: ${target.reason}`),
      steps(target.steps), remedies(target.remedies),
    ]),
  ].flat(Infinity).filter(Boolean);
}

// What is shown, and what refreshes it.
const main = document.getElementById('main');
const state = document.getElementById('state');
let shown = '';
let still = false;
let paused = false;
let turn = 0;

const focusable = () => [...main.querySelectorAll('a, button, input, select')];

function said(text, bad) {
  state.textContent = text;
  state.className = bad ? 'bad' : '';
}

// What is no encoding is taken as it stands.
function decoded(part) {
  try { return decodeURIComponent(part); } catch { return part; }
}

async function show() {
  const mine = ++turn;
  const [name = '', ...parts] = location.hash.slice(2).split('/').map(decoded);
  const view = Object.hasOwn(views, name || 'host') ? views[name || 'host'] : async () => [h('h1', {}, 'There is no such part'), link('to the host', '')];
  for (const one of document.querySelectorAll('nav a')) {
    const is = one.getAttribute('href').slice(2);
    const parent = { nic: 'nics', network: 'networks', group: 'groups' }[name] || name;
    if (is === parent) one.setAttribute('aria-current', 'page');
    else one.removeAttribute('aria-current');
  }
  try {
    const made = await view(...parts);
    // Another part was asked for meanwhile.
    if (mine !== turn) return;
    const same = shown === location.hash;
    const focused = focusable().indexOf(document.activeElement);
    const { selectionStart, selectionEnd } = document.activeElement || {};
    main.replaceChildren(...made.flat(Infinity).filter(Boolean));
    // A form, or a list so long that it is not asked for again and again.
    still = !!made.still;
    if (same && focused >= 0) {
      const again = focusable()[focused];
      again?.focus({ preventScroll: true });
      if (again?.type === 'search') again.setSelectionRange(selectionStart, selectionEnd);
    } else if (!same) {
      window.scrollTo(0, 0);
    }
    shown = location.hash;
    main.dataset.shown = name || 'host';
    said(paused ? 'paused' : `as of ${new Date().toLocaleTimeString()}`);
  } catch (error) {
    if (mine !== turn) return;
    if (shown !== location.hash) {
      main.replaceChildren(h('h1', {}, 'It cannot be shown'), h('p', { class: 'bad' }, error.message));
      shown = location.hash;
    }
    said(error instanceof Refused ? error.message : 'the daemon does not answer', true);
  }
}

addEventListener('hashchange', () => { if (location.hash !== '#main') show(); });
addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
  const parts = [...document.querySelectorAll('nav a')];
  if (event.key >= '1' && event.key <= '9') parts[Number(event.key) - 1]?.click();
  else if (event.key === '/') document.querySelector('input[type=search]')?.focus();
  else if (event.key === 'p') { paused = !paused; said(paused ? 'paused' : ''); if (!paused) show(); }
  else return;
  event.preventDefault();
});
// What somebody has marked is not taken away from under the pointer.
const marked = () => !getSelection().isCollapsed && main.contains(getSelection().anchorNode);
setInterval(() => { if (!paused && !document.hidden && !still && !marked()) show(); }, EVERY_MS);
show();
