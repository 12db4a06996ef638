-- Checks a request with Tidegate: lets it pass, or sends Tidegate's response to the client. See docs/proxies.md.

local TIDEGATE = "http://127.0.0.1:8001/v1/auth?from=original"
-- Timeout of the sub-request, in milliseconds.
local PATIENCE = 1000
-- While Tidegate is down, true lets everything pass and false answers 503.
local OPEN = true

-- Maximum number and size of the header fields of the sub-request. A request with more is answered with 431. HAProxy
-- 2.6 crashes at about 100 fields, and cannot send more than fits into its buffer (tune.bufsize, 16 KiB).
local MAX_FIELDS = 64
local MAX_BYTES = 12288

-- Headers of the client's connection, and headers that only this script may set.
local OWN = {
    ["connection"] = true, ["content-length"] = true, ["expect"] = true, ["host"] = true,
    ["keep-alive"] = true, ["te"] = true, ["transfer-encoding"] = true, ["upgrade"] = true,
    ["x-forwarded-for"] = true, ["x-original-host"] = true, ["x-original-method"] = true,
    ["x-original-uri"] = true,
}

-- The header fields of the sub-request, or nil if they exceed the maximum.
local function described(txn)
    local headers, fields, bytes = {}, 0, 0
    local function add(name, value)
        headers[name] = headers[name] or {}
        table.insert(headers[name], value)
        fields = fields + 1
        bytes = bytes + #name + #value + 4
    end
    for name, values in pairs(txn.http:req_get_headers()) do
        if not OWN[name] then
            for _, value in pairs(values) do
                add(name, value)
            end
        end
    end
    add("x-original-uri", txn.sf:pathq())
    add("x-original-method", txn.sf:method())
    -- The whole line: req_hdr ends a value at a comma, and the service behind does not.
    add("x-original-host", txn.sf:req_fhdr("host"))
    add("x-forwarded-for", txn.sf:src())
    if fields <= MAX_FIELDS and bytes <= MAX_BYTES then
        return headers
    end
end

-- Whether HAProxy generated this response because Tidegate is down. Tidegate's own 503 has an X-Tidegate-Id.
local function away(answer)
    local gateway = answer.status == 0 or (answer.status >= 502 and answer.status <= 504)
    return gateway and not answer.headers["x-tidegate-id"]
end

local function refuse(txn, status, headers, body)
    local reply = txn:reply({ status = status, body = body })
    for name, values in pairs(headers) do
        if not OWN[name] then
            for _, value in pairs(values) do
                reply:add_header(name, value)
            end
        end
    end
    txn:done(reply)
end

core.register_action("tidegate", { "http-req" }, function(txn)
    local headers = described(txn)
    if not headers then
        return refuse(txn, 431, {}, "")
    end
    local answer = core.httpclient():get({
        url = TIDEGATE, headers = headers, timeout = PATIENCE,
    })
    if away(answer) then
        if not OPEN then
            refuse(txn, 503, {}, "")
        end
    elseif answer.status == 200 then
        for variable, name in pairs({ ratelimit_policy = "ratelimit-policy", ratelimit = "ratelimit" }) do
            if answer.headers[name] then
                txn:set_var("txn." .. variable, answer.headers[name][0])
            end
        end
    else
        refuse(txn, answer.status, answer.headers, answer.body)
    end
end, 0)
